"""Small models, tasks, stores and crashes that the tests share."""

"""Language models: the model and its training, evaluation, generation."""

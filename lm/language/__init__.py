"""Language models: corpora, the model and its training, evaluation, generation."""

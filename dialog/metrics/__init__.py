"""BLEU, distinct n-grams, references and scores."""

"""Texts, tokenizers and vocabularies."""

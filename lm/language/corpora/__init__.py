"""Texts of language models: their sources and formats, preparation as token ids, and reading."""

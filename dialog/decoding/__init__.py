"""Decoding of responses: beam search, sampling, rules on the next token, and selection among responses."""

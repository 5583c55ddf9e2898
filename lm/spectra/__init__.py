"""Rank of matrices too large for memory, and of the log-probabilities of runs of both families."""

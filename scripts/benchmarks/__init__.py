"""Benchmarks: one module a subject, each a list of cases whose variants are timed side by side."""

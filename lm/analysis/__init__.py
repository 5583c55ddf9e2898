"""Analyses of trained language models: rank, divergence, components, gates, temperatures, examples."""

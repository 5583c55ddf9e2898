"""What a trained language model has learned, measured: rank, divergence, components and examples."""

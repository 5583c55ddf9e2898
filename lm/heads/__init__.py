"""Output heads, their losses and kernels."""

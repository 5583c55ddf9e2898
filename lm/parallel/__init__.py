"""Data parallelism over the processes that ``torchrun`` starts."""

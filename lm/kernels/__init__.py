"""The mixture loss on a GPU, beside the tensor operations that it stands for."""

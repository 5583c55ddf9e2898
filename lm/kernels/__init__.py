"""Fast paths of the mixture loss, each with the tensor operations that it stands for beside it."""

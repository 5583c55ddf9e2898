"""Fast paths of mixture loss and recurrent cells, each beside the tensor operations that it stands for."""

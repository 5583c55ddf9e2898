"""Recurrent cells, layers and their stacks."""

"""A synthetic dialog corpus whose distribution is known."""

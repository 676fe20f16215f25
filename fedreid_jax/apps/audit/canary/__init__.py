"""A lower bound of epsilon by canaries."""

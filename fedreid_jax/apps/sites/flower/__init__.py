"""The programs of a federation that Flower starts, and their connections."""

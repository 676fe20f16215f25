"""Photographs in folders, as people have them."""

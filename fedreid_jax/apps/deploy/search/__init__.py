"""Vectors of photographs and the search among them."""

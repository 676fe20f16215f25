"""Inference of membership in the training data."""

"""Reconstruction of images from a model and the statistics of a run."""

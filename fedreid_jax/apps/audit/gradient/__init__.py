"""Reconstruction of images from the gradient of one client."""

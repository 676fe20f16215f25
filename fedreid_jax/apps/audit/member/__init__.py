"""Inference of membership."""

"""Synthetic images of pedestrians: persons, cameras and domains."""

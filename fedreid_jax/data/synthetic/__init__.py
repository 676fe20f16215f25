"""A synthetic world of pedestrians: persons, cameras and domains."""

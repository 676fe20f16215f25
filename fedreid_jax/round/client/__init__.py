"""A client's part of a round: local steps and passes over its images."""

"""Runs of an experiment: construction, rounds, checkpoints and files."""

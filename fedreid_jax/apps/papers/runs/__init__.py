"""Runs of a sweep, a table or a study."""

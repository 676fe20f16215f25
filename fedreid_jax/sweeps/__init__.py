"""Sweeps: many runs one after another, and their tables."""

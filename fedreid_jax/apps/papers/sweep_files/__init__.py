"""Sweep files, whose `get_sweep()` returns the sweep of a figure or table."""

"""Sweeps: files whose `get_sweep()` returns the cells to run."""

"""Sweeps: files whose `get_sweep()` says which cells to run."""

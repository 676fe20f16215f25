"""Sweeps, and the tables and claims of the papers."""

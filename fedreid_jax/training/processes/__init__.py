"""Processes: signals, several hosts, the compile cache."""

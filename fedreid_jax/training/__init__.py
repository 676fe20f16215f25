"""A run: its parts, its rounds, its files."""

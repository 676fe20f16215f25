"""Configurations: fields, presets, checks, and what the papers compare."""

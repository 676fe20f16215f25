"""Configurations: their fields, presets, recipes, parsing and checks."""

"""Configurations: fields, presets, checks, tables and sweeps of the papers."""

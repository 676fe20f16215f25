"""Layers that several networks use."""

"""Checks of a component by training on toy clients."""

"""Splits of images over clients, and batches of them."""

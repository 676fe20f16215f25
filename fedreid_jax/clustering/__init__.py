"""Partitions of clients."""

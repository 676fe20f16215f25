"""Federated person re-identification as pure functions over clients."""

__version__ = '0.2.0'

"""Federated person re-identification as pure functions over clients."""

"""Federated training at real sites, whose messages Flower carries."""

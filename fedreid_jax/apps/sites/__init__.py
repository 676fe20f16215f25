"""Federated training of real sites, over Flower."""

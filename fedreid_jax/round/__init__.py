"""A federated round: local training, aggregation, and their devices."""

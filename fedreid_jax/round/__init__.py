"""A federated round: clients train, the server adds, devices hold both."""

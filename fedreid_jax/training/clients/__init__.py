"""States and statistics of clients, between rounds and on disk."""

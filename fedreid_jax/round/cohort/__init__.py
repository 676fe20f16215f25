"""Which clients train in a round, and when."""

"""A client's part of a round."""

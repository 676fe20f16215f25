"""The server's part of a round."""

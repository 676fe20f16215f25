"""The server's part of a round: sums, gathered uploads and updates."""

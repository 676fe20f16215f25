"""Speed and memory programs; each prints one table."""

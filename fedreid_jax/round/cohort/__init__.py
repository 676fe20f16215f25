"""The clients that train in a round, and the times at which they train."""

"""Models and weights in the formats of other programs."""

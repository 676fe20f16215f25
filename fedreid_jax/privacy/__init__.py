"""What a model and its statistics give away."""

"""Privacy of a model and its statistics."""

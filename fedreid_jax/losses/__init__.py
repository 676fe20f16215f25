"""Pure loss functions over a batch."""

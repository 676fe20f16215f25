"""The commands of a trained model."""

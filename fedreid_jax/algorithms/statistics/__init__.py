"""Statistics of features that several methods share."""

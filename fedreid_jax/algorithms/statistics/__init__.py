"""Statistics of features that several methods use."""

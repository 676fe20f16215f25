"""Published data sets, read in the layout of their official archives."""

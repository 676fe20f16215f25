"""Published data sets as sources of a federation."""

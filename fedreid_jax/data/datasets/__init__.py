"""Published data sets, read from their official archives' own layout."""

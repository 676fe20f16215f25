"""Small copies of published data sets, filled with the synthetic world."""

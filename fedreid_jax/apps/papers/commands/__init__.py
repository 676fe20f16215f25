"""Commands for sweeps, tables, claims, comparisons and pictures."""

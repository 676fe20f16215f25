"""The commands of sweeps, tables, claims and pictures."""

"""Pictures of sweeps, claims and comparisons."""

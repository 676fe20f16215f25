"""Pictures of sweeps and claims."""

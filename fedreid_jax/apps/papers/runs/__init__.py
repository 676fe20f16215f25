"""Training and evaluation of the runs of sweeps, tables and studies."""

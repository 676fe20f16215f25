"""Audits of what a run gives away."""

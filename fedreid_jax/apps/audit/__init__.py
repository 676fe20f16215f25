"""Audits of the private information that a run reveals."""

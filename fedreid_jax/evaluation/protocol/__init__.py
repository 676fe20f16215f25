"""Protocols of the published data sets."""

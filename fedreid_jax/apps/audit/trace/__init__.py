"""Tracing of persons between clients by shared statistics."""

"""Benchmarks of speed and memory; each program prints one table."""

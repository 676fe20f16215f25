"""Figures of runs by Matplotlib, one module per figure."""

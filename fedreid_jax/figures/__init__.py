"""Figures of runs by Matplotlib, and pages of HTML."""

"""The tables of the papers, declared as runs and published numbers."""

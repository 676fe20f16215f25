"""Tables of the papers: declarations of runs and published numbers."""

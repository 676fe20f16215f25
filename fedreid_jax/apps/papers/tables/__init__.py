"""The papers: their tables, their claims and their published numbers."""

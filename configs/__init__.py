"""What to run: `common.py` holds every field, one short file a recipe."""

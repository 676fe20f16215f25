"""What a run tells about itself: progress, budgets, warnings."""

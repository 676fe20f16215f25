"""Many runs one after another, and their tables."""

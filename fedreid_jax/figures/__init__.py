"""Pictures of runs, a file each: numbers in, a figure of Matplotlib out."""

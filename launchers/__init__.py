"""The doors: main (train, resume), evaluate (a checkpoint), data."""

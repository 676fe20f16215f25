"""The commands `audit` and `invert`."""

"""Tables, claims and sweeps of the papers."""

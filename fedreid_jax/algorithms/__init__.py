"""Built-in components, one per module; each `make(options)` returns a Component."""

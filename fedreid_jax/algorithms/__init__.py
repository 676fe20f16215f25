"""Built-in components, one per module; `make(options)` returns a Component."""

"""One idea a module; each `make(options)` returns a Component."""

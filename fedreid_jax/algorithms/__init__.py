"""One idea a module; each `make(**arguments)` returns a Component."""

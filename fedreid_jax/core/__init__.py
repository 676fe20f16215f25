"""Types, trees, options, plug-ins and random keys of the whole package."""

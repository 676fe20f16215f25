"""Applications on top of the core; nothing outside imports them."""

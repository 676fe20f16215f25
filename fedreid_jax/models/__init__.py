"""Networks, necks, heads, and released weights in."""

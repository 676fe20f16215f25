"""Networks, necks, heads, and readers of released weights."""

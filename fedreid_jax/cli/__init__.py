"""Commands: `fedreid COMMAND` and `fedreid NAME`."""

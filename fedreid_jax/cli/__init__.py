"""Commands: `fedreid COMMAND` and `python -m launchers.NAME`."""

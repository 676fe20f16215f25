"""The program `fedreid`, its core commands and their common flags."""

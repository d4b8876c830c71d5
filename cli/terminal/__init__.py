"""A conversation in a terminal: reading lines, showing answers, commands."""

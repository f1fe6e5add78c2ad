"""Numbers in JSON."""

"""What the workers of a server share in memory: the table of their states, and statistics."""

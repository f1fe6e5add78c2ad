"""The workers' shared memory: the table of their states, and statistics."""

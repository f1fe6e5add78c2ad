"""Model files: one module for each format, and the choice among them by suffix."""

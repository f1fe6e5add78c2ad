"""The metrics of a running server."""

"""The event loop of a worker."""

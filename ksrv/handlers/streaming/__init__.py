"""Handlers that answer piece by piece, and handlers with coroutines."""

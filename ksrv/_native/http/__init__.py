"""Heads of HTTP/1.1 requests."""

"""The native HTTP server."""

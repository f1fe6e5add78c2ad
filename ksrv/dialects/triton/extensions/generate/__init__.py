"""The extension generate."""

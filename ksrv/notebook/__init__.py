"""Notebooks: what `serve` does in them."""

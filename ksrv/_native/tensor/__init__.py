"""Datatypes, BYTES tensors and what handlers return."""

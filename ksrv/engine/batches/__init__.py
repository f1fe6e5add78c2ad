"""Turns requests into a batch, and the outputs of a batch into answers."""

"""Sequences: requests that belong together, and the instances that have their state."""

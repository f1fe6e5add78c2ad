"""Handlers: the four stages around a model, and the runner that drives them."""

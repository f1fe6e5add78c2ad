"""Handlers: the four stages around a model, and the runner that loads a handler and runs batches through it."""

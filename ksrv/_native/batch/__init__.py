"""Batches between the engine and a handler, and the stages that they go through."""

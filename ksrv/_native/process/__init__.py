"""Batches between a worker and its handler processes: messages, shared blocks, the ring and its dispatcher."""

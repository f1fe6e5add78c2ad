"""Queues, batches, deadlines and statistics of requests."""

"""Runs models: queues their requests, joins requests into batches, and gives batches to handlers by executors."""

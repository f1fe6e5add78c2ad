"""Models in memory: their instances, batches, and the executors that drive handlers."""

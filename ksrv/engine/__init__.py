"""What runs: models, their instances, batches, and the executors that drive handlers."""

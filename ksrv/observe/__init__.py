"""What can be seen of a running server: statistics, metrics, tracing and logs."""

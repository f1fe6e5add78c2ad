"""The state that the workers share in memory, and the parts that the front ends of a worker share."""

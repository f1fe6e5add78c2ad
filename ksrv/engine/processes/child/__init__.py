"""What runs in a handler process: its program, its messages and its calls of other models."""

"""The code of a handler process: its program, its messages and its calls to other models."""

"""The declarations in a handler's file: inputs and outputs as attributes or type hints, and settings."""

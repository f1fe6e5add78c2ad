"""What a handler's file declares: inputs and outputs as attributes or type hints, and settings."""

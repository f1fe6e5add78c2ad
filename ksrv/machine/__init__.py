"""What the machine gives this process: processors and memory."""

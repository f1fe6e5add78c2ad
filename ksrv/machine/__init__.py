"""The resources that the machine gives this process: processors and memory."""

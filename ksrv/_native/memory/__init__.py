"""Blocks of memory, the budget of bytes, and settings of malloc."""

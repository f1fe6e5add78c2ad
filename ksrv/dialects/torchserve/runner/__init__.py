"""Drives the handlers of archives: batches become rows, and items become answers."""

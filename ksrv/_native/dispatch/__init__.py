"""Compiled modules over native/dispatch: batches between queues and handler processes, without Python."""

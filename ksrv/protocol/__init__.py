"""Reads requests from bytes and writes answers to bytes. Nothing here knows sockets or the engine."""

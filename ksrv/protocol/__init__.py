"""Bytes to nouns and back, without sockets and without an engine."""

"""A server as a child process: how its settings reach it, and how it tells where it listens."""

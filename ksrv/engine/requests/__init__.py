"""Requests on their way through the engine: checks, limits, handles, answers that come in pieces."""

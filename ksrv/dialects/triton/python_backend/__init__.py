"""Runs models written for Triton's Python backend: their runner, and the module that they import (`api/`)."""

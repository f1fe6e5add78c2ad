"""The names of `triton_python_backend_utils`."""

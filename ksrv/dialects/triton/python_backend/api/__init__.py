"""The classes and functions of `triton_python_backend_utils`, the module that models of Triton's Python backend import."""

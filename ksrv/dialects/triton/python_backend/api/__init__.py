"""The classes and functions of `triton_python_backend_utils`, the module that such models import."""

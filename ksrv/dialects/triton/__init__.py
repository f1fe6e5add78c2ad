"""Triton Inference Server: `config.pbtxt`, the handlers of its models, and the Python backend."""

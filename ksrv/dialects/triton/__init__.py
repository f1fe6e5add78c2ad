"""Triton Inference Server: `config.pbtxt`, handlers for its models, the Python backend, and extensions of KServe v2."""

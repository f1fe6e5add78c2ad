"""Triton's extensions of KServe v2: a module or folder for each, with its REST routes and its gRPC calls."""

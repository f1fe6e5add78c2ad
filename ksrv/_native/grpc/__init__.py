"""The gRPC server's bindings."""

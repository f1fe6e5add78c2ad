"""gRPC: the server, its services and its calls."""

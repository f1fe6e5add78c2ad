"""gRPC: the two servers (native and grpcio), the services that both have, and calls."""

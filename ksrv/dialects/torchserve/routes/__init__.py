"""TorchServe's API over REST and gRPC: inference, management and descriptions."""

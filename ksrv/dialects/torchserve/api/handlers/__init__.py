"""TorchServe's handlers, which models subclass."""

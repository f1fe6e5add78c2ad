"""TorchServe's inference and description routes."""

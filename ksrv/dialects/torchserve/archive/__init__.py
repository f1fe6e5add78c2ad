"""TorchServe's archives (.mar): opening, caching, and their configuration as a model's source."""

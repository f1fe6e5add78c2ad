"""The network of the example: three layers, the same weights everywhere."""

import torch


class Embedder(torch.nn.Module):
    """Turns 64 features into an embedding of 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(7)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)
        )
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.2, 0.2, generator=own)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of a batch."""
        embedding: torch.Tensor = self.layers(features)
        return embedding

"""The eager form of the line that the tests' numbers go through."""

from torch import nn


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.through = nn.Linear(4, 3)

    def forward(self, x):
        return self.through(x)

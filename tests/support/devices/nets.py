"""A network and a handler for the tests of devices: y = 2 * x."""

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))
    def forward(self, x):
        return x * self.factor
"""
DEFAULT = "from ksrv import BaseHandler\nclass Default(BaseHandler): pass\n"

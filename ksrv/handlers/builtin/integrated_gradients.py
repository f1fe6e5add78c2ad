"""Integrated gradients: how much each value of an input adds to the score of a class.

The integral from an input of zeros is taken by the rule of Gauss and Legendre in 15 steps, as captum
does it for TorchServe's image handlers; captum itself is not needed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ksrv.handlers.builtin import ranking

if TYPE_CHECKING:
    import torch

STEPS = 15


def integrated_gradients(
    model: Callable[[Any], Any], inputs: "torch.Tensor", targets: Sequence[int]
) -> "torch.Tensor":
    """Return the attributions of a batch.

    Args:
        model: Gives the scores [rows, classes, ...] of a batch, differentiably.
        inputs: The batch.
        targets: The class to explain, for each row.

    Returns:
        The attributions, in the shape of the batch.
    """
    import torch

    rows = torch.arange(len(targets))
    classes = torch.tensor(targets)
    points, weights = np.polynomial.legendre.leggauss(STEPS)
    total = torch.zeros_like(inputs)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        scaled = (inputs * ((point + 1) / 2)).detach().requires_grad_()
        chosen = ranking.primary_output(model(scaled))[rows, classes].sum()
        [gradient] = torch.autograd.grad(chosen, scaled)
        total += gradient * (weight / 2)
    return total * inputs

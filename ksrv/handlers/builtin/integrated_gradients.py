"""Integrated gradients: how much each value of an input adds to the score of a class.

The integral runs from a reference (an image of zeros) to the input. It is approximated by Gauss-Legendre quadrature
with 15 steps, so the results are the same as with the package captum, which is not needed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ksrv.handlers.postprocess.scores import primary_output

if TYPE_CHECKING:
    import torch

STEPS = 15


def quadrature(steps: int) -> list[tuple[float, float]]:
    """Return the points in [0, 1] at which a gradient is taken, and their weights."""
    points, weights = np.polynomial.legendre.leggauss(steps)  # for [-1, 1]
    return list(zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


def integrated_gradients(
    model: Callable[[Any], Any], inputs: "torch.Tensor", targets: Sequence[int]
) -> "torch.Tensor":
    """Return the attributions of a batch.

    Args:
        model: Returns the scores [rows, classes, ...] of a batch, through which autograd can go back.
        targets: The class to explain, for each row.

    Returns:
        The attributions, in the shape of the batch.
    """
    import torch

    rows = torch.arange(len(targets))
    classes = torch.tensor(targets)
    total = torch.zeros_like(inputs)
    for point, weight in quadrature(STEPS):
        scaled = (inputs * point).detach().requires_grad_()
        chosen = primary_output(model(scaled))[rows, classes].sum()
        [gradient] = torch.autograd.grad(chosen, scaled)
        total += gradient * weight
    return total * inputs

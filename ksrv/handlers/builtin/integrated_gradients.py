"""Integrated gradients: how much each value of an input, or of a layer, adds to the score of a class.

The integral runs from a reference (an image of zeros, a text of tokens 0) to the input. It is approximated by
Gauss-Legendre quadrature with 15 steps for images and 50 for texts: the numbers of TorchServe's handlers, which use
captum. captum itself is not needed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ksrv.handlers.builtin import ranking

if TYPE_CHECKING:
    import torch

STEPS = 15
LAYER_STEPS = 50


def _quadrature(steps: int) -> list[tuple[float, float]]:
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
    for point, weight in _quadrature(STEPS):
        scaled = (inputs * point).detach().requires_grad_()
        chosen = ranking.primary_output(model(scaled))[rows, classes].sum()
        [gradient] = torch.autograd.grad(chosen, scaled)
        total += gradient * weight
    return total * inputs


def layer_integrated_gradients(
    model: Callable[[Any], Any], layer: Any, tokens: "torch.Tensor", target: int
) -> "torch.Tensor":
    """Return how much each value of a layer's output adds to a class, compared with the output for tokens of number 0.

    Args:
        model: Returns the scores [rows, classes, ...] of tokens. It runs the layer once.
        layer: The eager module, or None if the model does not have it.

    Returns:
        The attributions, in the shape of the layer's output.

    Raises:
        RuntimeError: The layer is missing, it is TorchScript, or the model does not run it once.
    """
    import torch

    if not isinstance(layer, torch.nn.Module):
        raise RuntimeError("the model has no module `embedding`, which explanations of texts need")
    if isinstance(layer, torch.jit.ScriptModule):
        raise RuntimeError(
            "the model is TorchScript, whose `embedding` cannot be observed; explanations of texts"
            " need an eager model"
        )
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    try:
        model(tokens)
        model(torch.zeros_like(tokens))
    finally:
        hook.remove()
    if len(seen) != 2:
        raise RuntimeError(
            f"the model ran its module `embedding` {len(seen)} times for two texts; explanations of"
            f" texts need it to run once for each"
        )
    given, reference = seen
    total = torch.zeros_like(given)
    for point, weight in _quadrature(LAYER_STEPS):
        scaled = (reference + (given - reference) * point).requires_grad_()
        # A hook that returns a value replaces the layer's output.
        hook = layer.register_forward_hook(lambda module, inputs, output, value=scaled: value)
        try:
            chosen = ranking.primary_output(model(tokens))[:, target].sum()
        finally:
            hook.remove()
        [gradient] = torch.autograd.grad(chosen, scaled)
        total += gradient * weight
    return total * (given - reference)

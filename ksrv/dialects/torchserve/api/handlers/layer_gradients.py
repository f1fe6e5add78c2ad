"""Integrated gradients of a layer: how much each value of the layer's output adds to the score of a class.

The reference is the layer's output for a text whose tokens are all 0. The integral runs from the reference to the
output for the given text, in 50 steps as in captum. Forward hooks read the layer's output, and later replace it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ksrv.handlers.builtin.integrated_gradients import quadrature
from ksrv.handlers.postprocess.scores import primary_output

if TYPE_CHECKING:
    import torch

LAYER_STEPS = 50


def layer_integrated_gradients(
    model: Callable[[Any], Any], layer: Any, tokens: "torch.Tensor", target: int
) -> "torch.Tensor":
    """Return how much each value of a layer's output adds to a class, compared with the reference.

    Args:
        model: Returns the scores [rows, classes, ...] of tokens. It runs the layer once.
        layer: The eager module, or None if the model does not have it.

    Returns:
        The attributions, in the shape of the layer's output.

    Raises:
        RuntimeError: The layer is missing or TorchScript, or the model does not run it exactly once.
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
    for point, weight in quadrature(LAYER_STEPS):
        scaled = (reference + (given - reference) * point).requires_grad_()
        # A hook that returns a value replaces the layer's output.
        hook = layer.register_forward_hook(lambda module, inputs, output, value=scaled: value)
        try:
            chosen = primary_output(model(tokens))[:, target].sum()
        finally:
            hook.remove()
        [gradient] = torch.autograd.grad(chosen, scaled)
        total += gradient * weight
    return total * (given - reference)

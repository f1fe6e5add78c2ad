"""Handlers in separate processes: the worker's side, and in `child` the side of the process."""

from ksrv.model.spec import ModelSpec


def uses_ring(spec: ModelSpec) -> bool:
    """Tell whether batches of a model may reach a handler process by its ring.

    Sequences need the channel, because messages about them must stay in order with the batches. Coroutines need it,
    because the ring runs one batch at a time. Optional inputs need it, because a record has the tensors of all inputs.

    Args:
        spec: The model's description, completed by the handler.
    """
    return spec.sequences is None and not spec.concurrency and not spec.has_optional_inputs

"""Handlers in processes of their own: the worker's end, and in `child` the process's."""

from ksrv.model.spec import ModelSpec


def uses_ring(spec: ModelSpec) -> bool:
    """Tell whether batches of a model may reach a handler process by its ring.

    What is said of sequences comes over the channel, in order with the batches; and the ring has its batches
    one after the other. Its records hold the tensors of all inputs, so that none may be left out.

    Args:
        spec: The model's description, completed by the handler.
    """
    return spec.sequences is None and not spec.concurrency and not spec.has_optional_inputs

"""Handlers in separate processes: here the worker's side, in `child` the code of the handler process."""

from ksrv.model.spec import ModelSpec


def uses_ring(spec: ModelSpec) -> bool:
    """Tell whether batches of a model may be sent to a handler process in its ring of shared memory.

    Otherwise every batch is a message on the socket. Sequences need messages, because the end of a sequence is a
    message and must stay in order with the batches. Coroutines need messages, because the ring runs one batch at a
    time. Optional inputs need messages, because a batch in the ring has the tensors of all inputs.

    Args:
        spec: The model's description, completed by the handler.
    """
    return spec.sequences is None and not spec.concurrency and not spec.has_optional_inputs

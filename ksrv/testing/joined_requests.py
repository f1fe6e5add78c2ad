"""Runs requests in batches for tests. Which requests join does not depend on time, unlike in a server."""

from collections.abc import Iterator, Sequence

from ksrv._native.queue import request_queue as native
from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv.engine.batches.split import split
from ksrv.engine.instances.instance import Instance
from ksrv.engine.model import ModelVersion
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import KsrvError
from ksrv.model.spec import ModelSpec
from ksrv.request import InferRequest, InferResponse

Answer = InferResponse | KsrvError


def run_joined(model: ModelVersion, requests: Sequence[InferRequest]) -> list[Answer]:
    """Run requests that arrive together, in the batches that a busy instance would take.

    Args:
        model: The model. Its first instance runs the batches on the calling thread, and must not run anything else.
        requests: The requests; if the model has no `batching:`, each becomes a separate batch.

    Returns:
        The answer of each request.
    """
    sequences = model.sequences
    answers: list[Answer | None] = [None] * len(requests)
    handles: list[tuple[int, QueuedRequest]] = []
    for index, request in enumerate(requests):
        try:
            rows, batch_key = model.validator.validate(request)
            handle = QueuedRequest(request, rows, batch_key)
            if sequences is not None:
                # Makes the request a part of its sequence. No queue takes it: `_run` runs it.
                sequences.push(handle, lambda _: native.OK)
            handles.append((index, handle))
        except KsrvError as error:
            answers[index] = error
    for group in _groups(handles, model.spec.max_batch_size):
        for index, answer in _run(model.spec, model.instances[0], group):
            answers[index] = answer
        if sequences is not None:  # a queue would call this when it ends a request
            for _, handle in group:
                sequences.request_ended(handle)
    return [answer for answer in answers if answer is not None]


def run_batch(model: ModelVersion, requests: Sequence[InferRequest]) -> list[InferResponse]:
    """Run requests as one batch, whatever `batching:` says, and return the answers.

    Raises:
        KsrvError: A request fails.
    """
    handles = [QueuedRequest(request, *model.validator.validate(request)) for request in requests]
    answers: list[InferResponse] = []
    for _, answer in _run(model.spec, model.instances[0], list(enumerate(handles))):
        if isinstance(answer, KsrvError):
            raise answer
        answers.append(answer)
    return answers


def _groups(
    handles: Sequence[tuple[int, QueuedRequest]], most: int
) -> Iterator[list[tuple[int, QueuedRequest]]]:
    """Yield the requests of each batch: consecutive requests of one key, until the batch is full.

    Two requests of a sequence are in different batches.
    """
    group: list[tuple[int, QueuedRequest]] = []
    for index, handle in handles:
        rows = sum(other.rows for _, other in group) + handle.rows
        same_sequence = handle.sequence is not None and any(
            other.sequence is handle.sequence for _, other in group
        )
        if group and (rows > most or handle.batch_key != group[0][1].batch_key or same_sequence):
            yield group
            group = []
        group.append((index, handle))
    if group:
        yield group


def _run(
    spec: ModelSpec, instance: Instance, group: list[tuple[int, QueuedRequest]]
) -> Iterator[tuple[int, Answer]]:
    index_of = {id(handle): index for index, handle in group}
    batch = instance.new_batch()
    for handle, error in batch.add([handle for _, handle in group]):
        yield index_of[id(handle)], error
    if not batch.handles:
        return
    answers: Sequence[Answer]
    try:
        inputs = batch.inputs()
        before = InputReferences(list(inputs.tensors.values()))
        outputs = instance.execute(inputs)
        answers = split(spec, batch.handles, outputs, dict(outputs.timings), before)
    except KsrvError as error:
        answers = [error] * len(batch.handles)
    for handle, answer in zip(batch.handles, answers, strict=True):
        yield index_of[id(handle)], answer

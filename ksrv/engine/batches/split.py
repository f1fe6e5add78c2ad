"""Splits the outputs of a batch into the answers of its requests, and joins the answers of a request that was split.

An answer is sent from the handler's memory if the aliasing check proves that nothing else can reach this memory.
Otherwise it is copied, and the copy is counted. So a handler that returns the same memory every time, or keeps a part
of it, never changes an answer that is being sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor import aliasing_check
from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv.engine.batches.classification import classify
from ksrv.engine.batches.padding import cut_back
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError, quote
from ksrv.handlers.batch import excess
from ksrv.images.encoder import encode, wanted_encoding
from ksrv.model.spec import ModelSpec
from ksrv.request import MEDIA_TYPE, ExecutorOutputs, InferRequest, InferResponse, Tensor


def split(
    spec: ModelSpec,
    handles: Sequence[QueuedRequest],
    outputs: ExecutorOutputs,
    timings: dict[str, int],
    before: InputReferences | None,
) -> list[InferResponse | KsrvError]:
    """Return one answer for each request of a batch.

    Args:
        timings: Nanoseconds by stage of the whole batch.
        before: The references to the batch's inputs before it ran; see `aliasing_check.unshared`.

    Returns:
        Responses and errors, in the order of `handles`.
    """
    if not handles:
        return []
    tensors = outputs.tensors
    if not outputs.exclusive:
        if before is not None and any(handle.request.callers for handle in handles):
            # The inputs of a call are the calling handler's arrays, which it may overwrite after the call.
            before = None
        unshared = aliasing_check.unshared(tensors, before)
        if not all(unshared):
            tensors = [
                tensor if free else _copy(tensor)
                for tensor, free in zip(tensors, unshared, strict=True)
            ]
    parts = outputs.parts
    if len(handles) == 1 and parts is None and not outputs.failures:
        return [_response(spec, handles[0], 0, tensors, outputs, timings)]
    answers: list[InferResponse | KsrvError] = []
    row = 0
    for index, handle in enumerate(handles):
        end = row + handle.rows
        failure = outputs.failures.get(index)
        if failure is not None:
            # An error may have headers too; `excess` returns the error for headers that are too large to send.
            answers.append(excess(getattr(failure, "headers", {})) or failure)
        else:
            if parts is not None:
                first, last = parts.get(index, (0, 0))
                part = tensors[first:last]
            else:
                whole = len(handles) == 1
                part = tensors if whole else [tensor.rows(row, end) for tensor in tensors]
            answers.append(_response(spec, handle, index, part, outputs, timings))
        row = end
    return answers


def _copy(tensor: Tensor) -> Tensor:
    data = tensor.data
    assert isinstance(data, np.ndarray)  # lists of elements always count as unshared
    buffer_pool.count_copy(data.nbytes)
    # A plain array, because a subclass may have other attributes.
    copied = np.array(data, order="C")
    return Tensor(tensor.name, tensor.datatype, tensor.shape, copied, tensor.parameters)


def _response(
    spec: ModelSpec,
    handle: QueuedRequest,
    index: int,
    tensors: list[Tensor],
    outputs: ExecutorOutputs,
    timings: dict[str, int],
) -> InferResponse | KsrvError:
    """Return the answer of one request, whose tensors are split off already."""
    request: InferRequest = handle.request
    # The outputs of `explain` are not the declared outputs, so they have no lengths and no content types.
    if handle.lengths and not request.explain:
        tensors = [cut_back(tensor, spec.output(tensor.name), handle.lengths) for tensor in tensors]
    if request.outputs and tensors:  # the end of a stream has no outputs
        try:
            tensors = _wanted(spec, request, tensors, may_lack=outputs.parts is not None)
        except KsrvError as error:
            return error
    headers = outputs.headers.get(index, {})
    if headers and (too_large := excess(headers)):
        return too_large
    facts = outputs.facts.get(index, {})
    if (headers or _has_files(spec)) and not request.explain:
        # In a dialect's handler, Content-Type describes the answer of the dialect's route.
        tensors = _with_content_types(spec, tensors, {} if facts else headers)
    waited_ns = handle.started_ns - handle.enqueued_ns
    response = InferResponse(
        spec.name,
        spec.version,
        request.id,
        tensors,
        # A copy, because the handler may keep the batch and change them.
        dict(outputs.parameters.get(index, ())),
        {"queue": max(waited_ns - timings.get("assemble", 0), 0), **timings},
        dict(headers),
        facts,
    )
    if request.remember is not None:
        request.remember(response)
    return response


def _has_files(spec: ModelSpec) -> bool:
    for output in spec.outputs:  # noqa: SIM110  any() takes twice the time, and each streamed word pays it
        if output.content_type:
            return True
    return False


def _with_content_types(
    spec: ModelSpec, tensors: list[Tensor], headers: Mapping[str, str]
) -> list[Tensor]:
    """Return the outputs, and give each output of files its content type as a parameter.

    Args:
        headers: The headers that the handler set. A Content-Type is the type of the only BYTES output.
    """
    elements = [tensor for tensor in tensors if tensor.datatype == "BYTES"]
    given = [value for name, value in headers.items() if name.lower() == "content-type"]
    found = []
    for tensor in tensors:
        declared = spec.output(tensor.name)
        kind = "" if declared is None else declared.content_type
        if given and elements == [tensor]:
            kind = given[-1]
        if kind and tensor.datatype == "BYTES":
            parameters = {**tensor.parameters, MEDIA_TYPE: kind}
            tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, parameters)
        found.append(tensor)
    return found


def _wanted(
    spec: ModelSpec, request: InferRequest, tensors: list[Tensor], *, may_lack: bool
) -> list[Tensor]:
    """Return the outputs that a request asks for, in its order.

    Args:
        may_lack: Whether an output may be missing, as in answers of handlers that return tensors for each request.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    chosen = []
    for wanted in request.outputs:
        tensor = by_name.get(wanted.name)
        if tensor is None and may_lack and spec.output(wanted.name) is not None:
            continue
        if tensor is None and spec.outputs and not request.explain:
            raise HandlerFailed(
                f"the handler of the model {spec.name} returned no output {wanted.name!r}, which "
                f"the model declares"
            )
        if tensor is None:
            known = ", ".join(quote(name) for name in by_name)
            raise InvalidRequest(
                f"the model {spec.name} has no output {quote(wanted.name)}; it answered {known}"
            )
        if wanted.classification:
            tensor = classify(tensor, wanted.classification, spec.labels)
        declared = spec.output(wanted.name)
        encoding = wanted_encoding(wanted.name, declared, wanted.parameters)
        if encoding is not None and declared is not None:
            tensor = encode(tensor, declared, encoding)
        chosen.append(tensor)
    return chosen


def join(responses: list[InferResponse]) -> InferResponse:
    """Return one response for a request that was split into several.

    The response has the headers and parameters that the handler set for each part; if two parts set the same name, the
    later part wins. Stage times are sums over the parts, but the time in the queue is that of the first part.

    Raises:
        HandlerFailed: The outputs of the parts have rows of different forms, or their headers are too large together.
    """
    first = responses[0]
    forms = [
        ", ".join(f"{out.name} {out.datatype}{list(out.shape[1:])}" for out in response.outputs)
        for response in responses
    ]
    other = next((form for form in forms if form != forms[0]), None)
    if other is not None:
        raise HandlerFailed(
            f"the model {first.model_name} answered parts of the request by rows of different forms, {forms[0]} "
            f"and {other}; send no more rows than a batch may have"
        )
    tensors = []
    for index, like in enumerate(first.outputs):
        parts = [response.outputs[index] for response in responses]
        rows = sum(part.shape[0] for part in parts)
        shape = (rows, *like.shape[1:])
        if isinstance(like.data, np.ndarray):
            data = np.concatenate([part.data for part in parts])
            buffer_pool.count_copy(data.nbytes)
            tensors.append(Tensor(like.name, like.datatype, shape, data, like.parameters))
        else:
            elements = [element for part in parts for element in part.data]
            tensors.append(Tensor(like.name, like.datatype, shape, elements, like.parameters))
    headers = {name: value for each in responses for name, value in each.headers.items()}
    parameters = {name: value for each in responses for name, value in each.parameters.items()}
    if too_large := excess(headers):
        raise too_large
    timings: dict[str, int] = {}
    for response in responses:
        for stage, ns in response.timings.items():
            timings[stage] = timings.get(stage, 0) + ns
    timings["queue"] = first.timings.get("queue", 0)
    return replace(first, outputs=tensors, headers=headers, parameters=parameters, timings=timings)

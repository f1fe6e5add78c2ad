"""A batch and a context without a server, for tests that call one stage of a handler.

    handler = Cats()
    handler.context = context(parameters={"least": 0.5}, batch=batch({"image": array}))
    handler.postprocess(logits)

`context` returns a `TestContext`, which stores the values that the handler reports by `metrics`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.handlers.batch import Batch
from ksrv.handlers.devices.device import Device
from ksrv.handlers.diagnostics.metrics import Metrics
from ksrv.handlers.handler_context import HandlerContext
from ksrv.handlers.sequences import Sequence as RowSequence
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.model.spec import ModelSpec
from ksrv.request import Array, Element, ExecutorInputs, Parameter, RequestPart, Tensor
from ksrv.statistics import MetricRecord


def batch(
    inputs: Mapping[str, Any],
    *,
    rows: Sequence[int] | None = None,
    ids: Sequence[str] = (),
    parameters: Mapping[str, Parameter] | None = None,
    headers: Mapping[str, str] | None = None,
    explain: bool = False,
    states: Sequence[dict[str, Any]] = (),
    lengths: Mapping[str, Sequence[int]] | None = None,
) -> Batch:
    """Return a batch as handlers see it.

    Args:
        inputs: Arrays by name, with the batch dimension first; object arrays and lists of `bytes` or
            `str` are BYTES.
        rows: How many rows each request has; by default one request has all rows.
        ids: The ids of the requests.
        parameters: The parameters of every request.
        headers: The headers of every request.
        explain: Whether the clients ask for explanations.
        states: For a model that serves sequences, the state of each request's sequence.
        lengths: For each named length, the unpadded length of each request's rows.

    Raises:
        ValueError: The inputs have different numbers of rows, or `rows` does not add up to that number.
    """
    tensors = {name: _tensor(name, value) for name, value in inputs.items()}
    counts = {name: tensor.shape[0] if tensor.shape else 0 for name, tensor in tensors.items()}
    total = next(iter(counts.values()), 0)
    if len(set(counts.values())) > 1:
        raise ValueError(f"the inputs have different numbers of rows: {counts}")
    sizes = [total] if rows is None else list(rows)
    if sum(sizes) != total:
        raise ValueError(f"the requests have {sum(sizes)} rows, the inputs {total}")
    requests: list[RequestPart] = []
    start = 0
    for index, size in enumerate(sizes):
        name = ids[index] if index < len(ids) else ""
        part = slice(start, start + size)
        requests.append(
            RequestPart(
                part,
                name,
                dict(parameters or {}),
                dict(headers or {}),
                lengths={key: values[index] for key, values in (lengths or {}).items()},
            )
        )
        start += size
    layouts = {name: "NHWC" for name, tensor in tensors.items() if len(tensor.shape) == 4}
    made = Batch(ExecutorInputs(tensors, total, requests, explain), layouts, Device("cpu").put)
    # A sequence with an empty state begins.
    for request, state in zip(requests, states, strict=False):
        made.sequences += [RowSequence(start=not state, end=False, state=state)] * request.rows
    return made


class TestContext(HandlerContext):
    """The context that `context` returns: it belongs to no server.

    Attributes:
        reported: The values that the handler reported by `metrics`.
    """

    __test__ = False  # pytest would collect a class with this name

    def __init__(self, source: ModelSource, config: ModelConfig, given: Batch | None) -> None:
        self.reported: list[MetricRecord] = []
        metrics = Metrics(source.name, source.version, self.reported.append)
        super().__init__(source, config, metrics=metrics)
        self._given = given

    @property
    def batch(self) -> Any:
        """The batch that the test gave."""
        return self._given


def context(
    *,
    name: str = "model",
    version: str = "",
    folder: str | Path = ".",
    parameters: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    device: str = "cpu",
    spec: ModelSpec | None = None,
    batch: Batch | None = None,
) -> TestContext:
    """Return a handler's context.

    Args:
        name: The model's name.
        folder: The model's folder.
        parameters: The `parameters:` of the settings.
        labels: Class labels by index.
        spec: The inputs and outputs.
        batch: The batch that is running.
    """
    path = Path(folder).absolute()
    config = ModelConfig(
        device=device,
        parameters=dict(parameters or {}),
        labels=None if labels is None else tuple(labels),
    )
    source = ModelSource(name=name, version=version, folder=path, root=path, config=config)
    made = TestContext(source, config, batch)
    if spec is not None:
        made.spec = spec
    return made


def _tensor(name: str, value: Any) -> Tensor:
    array: Array = np.asarray(value)
    if array.dtype.kind in "OSU":
        elements: list[Element] = [
            element.encode() if isinstance(element, str) else bytes(element)
            for element in array.ravel()
        ]
        return Tensor(name, "BYTES", array.shape, elements)
    if array.dtype not in NAME_BY_DTYPE:
        raise ValueError(f"the input {name!r} is an array of {array.dtype}, which has no datatype")
    return Tensor(name, NAME_BY_DTYPE[array.dtype], array.shape, array)

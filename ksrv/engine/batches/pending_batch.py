"""Makes one batch out of the requests that were taken together.

A request alone keeps the arrays it came with, without a copy. When several are joined, each raw
tensor is copied once into its rows of a leased block, and each image is decoded once into its rows.
A `PendingBatch` can grow while an earlier batch still runs: its images are decoded as they arrive, its
raw tensors are copied when it is known that they do not stay alone. Inputs that are padded are joined last, when the
longest row of the batch is known.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ksrv._native.images.image_header import Header
from ksrv._native.memory import buffer_pool
from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.tensor import datatype
from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv.engine.batches.batch import fill, finish, leased
from ksrv.engine.batches.fast_batch import read_requests
from ksrv.engine.batches.padding import BatchPadding
from ksrv.engine.batches.split import split
from ksrv.engine.batches.streaming import ChunkSender, chunk_sender
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import KsrvError
from ksrv.images.preparer import ImagePreparer
from ksrv.model.spec import ModelSpec
from ksrv.request import (
    Array,
    BatchInputs,
    BatchOutputs,
    CheckedImages,
    Element,
    InferRequest,
    InferResponse,
    Tensor,
    single_request,
)


class PendingBatch:
    """The requests of one batch and their tensors; see `RunnableBatch`.

    Args:
        images: How the images of each image input are prepared, by input name.
        padding: The padding of rows of different lengths.
        lease: Returns a writable block of at least so many bytes.
        room: How many rows the batch may grow to; its blocks are leased for these.
        queue: The queue that the requests came from.

    Attributes:
        handles: The requests of the batch, in row order.
        failed: Requests that cannot be run, with the reason.
        rows: How many rows the batch has.
        spent_ns: How long assembling has taken.
        attempts: How many executors died of the batch.
        ran_ns: How long the executor took.
        streamed: Whether a client has got an intermediate answer.
    """

    # Set by `inputs`.
    _chunks: ChunkSender | None = None
    _references: InputReferences

    def __init__(
        self,
        spec: ModelSpec,
        images: dict[str, ImagePreparer],
        padding: BatchPadding,
        lease: Callable[[int], Any],
        room: int = 0,
        queue: Queue | None = None,
    ) -> None:
        self._spec = spec
        self._queue = queue
        self._images = images
        self._padding = padding
        self._lease = lease
        self._room = room
        self._filled: dict[str, Array] = {}
        self._copied = 0  # handles whose raw tensors were copied into `_filled`
        self.handles: list[QueuedRequest] = []
        self.failed: list[tuple[QueuedRequest, KsrvError]] = []
        self.rows = 0
        self.spent_ns = 0
        self.attempts = 0
        self.ran_ns = 0

    def add(self, handles: Sequence[QueuedRequest]) -> None:
        """Append requests of the same group to the batch.

        Args:
            handles: The requests. A request whose images cannot be decoded is put into `failed`.
        """
        if len(handles) == 1 and not self.handles and self._stays_alone(handles[0]):
            self.handles.append(handles[0])
            self.rows = handles[0].rows
            return
        began = time.monotonic_ns()
        if self._images:
            self._room = max(self._room, self.rows + sum(handle.rows for handle in handles))
            self._add_with_images(handles)
        else:
            self.handles.extend(handles)
            self.rows += sum(handle.rows for handle in handles)
        if len(self.handles) > max(1, self._copied):
            self._room = max(self._room, self.rows)
            self._copy_raw()
        self.spent_ns += time.monotonic_ns() - began

    def _stays_alone(self, handle: QueuedRequest) -> bool:
        """Whether a first request is run on the tensors that it came with, without a copy."""
        if not self._images:
            return True
        return self._room == 0 and not any(
            tensor.name in self._images and not isinstance(tensor.data, np.ndarray)
            for tensor in handle.request.inputs
        )

    def fill(self, handles: list[QueuedRequest], queue: Queue, stats: Stats) -> None:
        """Add requests, and answer the requests that cannot be added."""
        fill(self, handles, queue, stats)

    def takes(self, handles: Sequence[QueuedRequest]) -> bool:
        """See `RunnableBatch.takes`."""
        return True

    def truncate(self, count: int) -> None:
        """See `RunnableBatch.truncate`."""
        del self.handles[count:]
        self.failed.clear()
        self.rows = sum(handle.rows for handle in self.handles)
        self._copied = min(self._copied, count)

    def keep(self, alive: Sequence[QueuedRequest]) -> None:
        """Drop the rows of requests that ended before the batch started."""
        if len(alive) == len(self.handles):
            return
        remaining = set(map(id, alive))
        stays = [id(handle) in remaining for handle in self.handles]
        kept = np.repeat(stays, [handle.rows for handle in self.handles])
        for array in self._filled.values():
            rows = array[: self.rows][kept[: len(array)]]
            buffer_pool.count_copy(rows.nbytes)
            array[: len(rows)] = rows
        self._copied = sum(stays[: self._copied])
        self.handles = list(alive)
        self.rows = int(kept.sum())

    @property
    def streamed(self) -> bool:
        """Whether a client has got an intermediate answer."""
        return self._chunks is not None and self._chunks.sent

    @property
    def ended_before(self) -> Mapping[int, InferResponse | KsrvError]:
        """See `RunnableBatch.ended_before`."""
        return {} if self._chunks is None else self._chunks.ended

    def inputs(self) -> BatchInputs:
        """See `RunnableBatch.inputs`."""
        batch = self._inputs()
        batch.handles = list(self.handles)
        if self.handles[0].sequence is not None:
            for handle in self.handles:
                handle.sequence.begun = True
        self._chunks = batch.emit = chunk_sender(self._spec, self.handles, self._queue)
        self._references = InputReferences(list(batch.tensors.values()))
        return batch

    def answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, *, later: bool) -> None:
        """See `RunnableBatch.answer`."""
        timings = {"assemble": self.spent_ns, **outputs.timings}
        answers = split(self._spec, self.handles, outputs, timings, self._references)
        finish(self, answers, queue, stats, timings, later=later)

    def _inputs(self) -> BatchInputs:
        first: InferRequest = self.handles[0].request
        padded = self._padded()
        if len(self.handles) == 1 and not self._filled and not padded:
            return single_request(self._in_order(first), self.rows, first)
        own = len(self.handles) == 1 and not self._copied
        joined = padded | {
            tensor.name: tensor if own and tensor.name not in self._filled else self._joined(tensor)
            for tensor in self._in_order(first)
            if tensor.name not in padded
        }
        if padded:
            joined = {one.name: joined[one.name] for one in self._spec.inputs if one.name in joined}
        return BatchInputs(joined, self.rows, read_requests(self.handles), first.explain)

    def _padded(self) -> dict[str, Tensor]:
        """Return the inputs that are padded, which may be masks that no request has."""
        if not self.handles[0].lengths:
            return {}
        began = time.monotonic_ns()
        joined = self._padding.join(self.handles, self.rows, partial(leased, self._lease))
        self.spent_ns += time.monotonic_ns() - began
        return joined

    def _in_order(self, request: InferRequest) -> list[Tensor]:
        if (
            len(request.inputs) < 2
            or not self._spec.inputs
            or self._spec.accepts_any_inputs
            or request.dialect
        ):
            return request.inputs
        by_name = {tensor.name: tensor for tensor in request.inputs}
        return [by_name[spec.name] for spec in self._spec.inputs if spec.name in by_name]

    def _joined(self, like: Tensor) -> Tensor:
        name = like.name
        if name in self._filled:
            rows = like.shape[0] if len(self.handles) == 1 else self.rows  # it need not be batched
            data = self._filled[name][:rows]
            # Images have become what the model declares. Other tensors keep the requests' datatype, which for
            # inputs without a declared datatype may differ from the datatype in the model's metadata.
            declared = self._spec.input(name) if name in self._images else None
            kind = like.datatype if declared is None else declared.datatype
            return Tensor(name, kind, data.shape, data)
        elements: list[Element] = list(
            itertools.chain.from_iterable(
                _tensor(handle.request, name).data for handle in self.handles
            )
        )
        return Tensor(name, like.datatype, (self.rows, *like.shape[1:]), elements)

    def _copy_raw(self) -> None:
        """Copy the raw tensors of requests that have become part of a joined batch."""
        new = self.handles[self._copied :]
        row = sum(handle.rows for handle in self.handles[: self._copied])
        for like in self.handles[0].request.inputs:
            name = like.name
            if name in self._images or not isinstance(like.data, np.ndarray):
                continue
            if self.handles[0].lengths and name in self._padding.inputs:
                continue
            target = self._rows(name, like.datatype, like.shape)[row : self.rows]
            parts: list[Any] = [_tensor(handle.request, name).data for handle in new]
            np.concatenate(parts, out=target, casting="unsafe")
            buffer_pool.count_copy(target.nbytes)
        self._copied = len(self.handles)

    def _add_with_images(self, handles: Sequence[QueuedRequest]) -> None:
        """Add requests, their images decoded and their raw tensors for image inputs copied.

        The images of all of them are decoded together, so that the decoding threads share them.
        """
        began = self.rows
        known = len(self.handles)
        bad: dict[int, KsrvError] = {}
        self.handles.extend(handles)
        self.rows += sum(handle.rows for handle in handles)
        first: InferRequest = self.handles[0].request
        given = {tensor.name for tensor in first.inputs}
        for name, images in self._images.items():
            if name not in given:
                continue  # an optional input; the requests of a group have the same inputs
            target = self._image_rows(name, first)
            row = began
            elements: list[Element] = []
            rows: list[int] = []
            owners: list[int] = []
            numbers: list[int] = []
            headers: list[Header] = []
            for index, handle in enumerate(handles, known):
                tensor = _tensor(handle.request, name)
                data = tensor.data
                if isinstance(data, np.ndarray):
                    target[row : row + len(data)] = data
                    buffer_pool.count_copy(data.nbytes)
                else:
                    elements += data
                    rows += range(row, row + len(data))
                    owners += [index] * len(data)
                    numbers += range(len(data))
                    headers += self._checked(handle.request, name).headers
                row += tensor.shape[0]
            asked = [self.handles[owner] for owner in owners]
            errors = images.prepare(elements, target, rows, numbers, asked, headers)
            for owner, error in zip(owners, errors, strict=True):
                if error is not None:
                    bad.setdefault(owner, error)
        if bad:
            self.failed += [(self.handles[index], error) for index, error in bad.items()]
            self.keep([one for index, one in enumerate(self.handles) if index not in bad])

    def _checked(self, request: InferRequest, name: str) -> CheckedImages:
        """Return the images of an input as validation has checked them.

        Requests of the fast path were validated without Python.
        """
        checked = (request.images or {}).get(name)
        if checked is None:
            tensor = _tensor(request, name)
            assert isinstance(tensor.data, list)  # of BYTES
            checked = self._images[name].check(tensor.data, tensor.shape[0])
            request.images = {**(request.images or {}), name: checked}
        return checked

    def _image_rows(self, name: str, first: InferRequest) -> Array:
        """Return the array for an image input; the requests of a group agree on its shape."""
        like = _tensor(first, name)
        spec = self._spec.input(name)
        assert spec is not None  # there are images for declared inputs only
        is_raw = isinstance(like.data, np.ndarray)
        shape = like.shape if is_raw else self._checked(first, name).shape
        return self._rows(name, spec.datatype, (like.shape[0], *shape[1:]))

    def _rows(self, name: str, kind: str, first: tuple[int, ...]) -> Array:
        """Return the array that holds an input's rows, leased on first use and grown when needed.

        Args:
            name: The input.
            kind: Its datatype.
            first: Its shape in the first request, which may have more rows than the batch where it is not batched.
        """
        array = self._filled.get(name)
        if array is not None and len(array) >= self._room:
            return array
        dtype = np.dtype(datatype.dtype_string(kind))
        shape = (max(self._room, first[0]), *first[1:])
        grown = np.ndarray(shape, dtype, leased(self._lease, math.prod(shape) * dtype.itemsize))
        if array is not None:
            grown[: len(array)] = array
            buffer_pool.count_copy(array.nbytes)
        self._filled[name] = grown
        return grown


def _tensor(request: InferRequest, name: str) -> Tensor:
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise KeyError(name)  # validation gave the requests of one group the same names

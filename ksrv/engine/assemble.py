"""Makes one batch out of the requests that were taken together.

A request alone keeps the arrays it came with, without a copy. Where several are joined, each raw
tensor is copied once into its rows of a leased block, and each image is decoded once into its rows.
An `Assembly` can grow while an earlier batch still runs: its images are decoded as they arrive, its
raw tensors are copied when it is known that they do not stay alone.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ksrv._native import arena, datatype
from ksrv.engine.admission import Images
from ksrv.engine.ticket import QueuedTicket
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.request import Array, BatchInputs, BatchRequest, Element, InferRequest, Tensor
from ksrv.spec import ModelSpec


class RowImages(Images, Protocol):
    """What assembly asks of the images of one input."""

    def prepare(
        self, elements: Sequence[Element], out: Array, first_row: int
    ) -> list[KsrvError | None]:
        """Decode `elements` into the rows of `out` from `first_row` on; one error for each bad one."""


class Assembly:
    """The requests of one batch and their tensors.

    Args:
        spec: The model's description.
        images: How the images of each image input are prepared, by input name.
        lease: Returns a writable block of at least so many bytes.
        room: How many rows the batch may grow to; its blocks are leased for these.

    Attributes:
        tickets: The requests of the batch, in row order.
        failed: Requests that cannot be run, with the reason.
        rows: How many rows the batch has.
        spent_ns: How long assembling has taken.
        attempts: How many executors died of the batch.
        ran_ns: How long the executor took.
        timings: Nanoseconds by stage.
    """

    def __init__(
        self,
        spec: ModelSpec,
        images: dict[str, RowImages],
        lease: Callable[[int], Any],
        room: int = 0,
    ) -> None:
        self._spec = spec
        self._images = images
        self._lease = lease
        self._room = room
        self._filled: dict[str, Array] = {}
        self._copied = 0  # tickets whose raw tensors lie in `_filled`
        self.tickets: list[QueuedTicket] = []
        self.failed: list[tuple[QueuedTicket, KsrvError]] = []
        self.rows = 0
        self.spent_ns = 0
        self.attempts = 0
        self.ran_ns = 0
        self.timings: dict[str, int] = {}

    def add(self, tickets: Sequence[QueuedTicket]) -> None:
        """Add requests of the same group behind those that the batch has.

        Args:
            tickets: The requests; one whose images cannot be decoded goes to `failed`.
        """
        began = time.monotonic_ns()
        if self._images:
            self._room = max(self._room, self.rows + sum(ticket.rows for ticket in tickets))
            for ticket in tickets:
                self._add_with_images(ticket)
        else:
            self.tickets.extend(tickets)
            self.rows += sum(ticket.rows for ticket in tickets)
        if len(self.tickets) > 1:
            self._room = max(self._room, self.rows)
            self._copy_raw()
        self.spent_ns += time.monotonic_ns() - began

    def truncate(self, count: int) -> None:
        """Forget all but the first requests, when others could not be added.

        Args:
            count: How many to keep.
        """
        del self.tickets[count:]
        self.failed.clear()
        self.rows = sum(ticket.rows for ticket in self.tickets)
        self._copied = min(self._copied, count)

    def keep(self, alive: Sequence[QueuedTicket]) -> None:
        """Drop the rows of requests that ended before the batch started.

        Args:
            alive: Those that remain, in order.
        """
        if len(alive) == len(self.tickets):
            return
        remaining = set(map(id, alive))
        kept = np.concatenate(
            [
                np.full(ticket.rows, id(ticket) in remaining, dtype=np.bool_)
                for ticket in self.tickets
            ]
        )
        for array in self._filled.values():
            rows = array[: self.rows][kept]
            arena.count_copy(rows.nbytes)
            array[: len(rows)] = rows
        self.tickets = list(alive)
        self.rows = int(kept.sum())
        self._copied = len(alive) if self._copied else 0

    def inputs(self) -> BatchInputs:
        """Return the batch as an executor takes it."""
        requests: list[BatchRequest] = []
        row = 0
        for ticket in self.tickets:
            request: InferRequest = ticket.request
            end = row + ticket.rows
            requests.append(
                BatchRequest(slice(row, end), request.id, request.parameters, request.headers)
            )
            row = end
        first: InferRequest = self.tickets[0].request
        alone = len(self.tickets) == 1 and not self._copied
        tensors = {
            tensor.name: tensor
            if alone and tensor.name not in self._filled
            else self._joined(tensor)
            for tensor in self._in_order(first)
        }
        return BatchInputs(tensors, row, requests, first.explain)

    def _in_order(self, request: InferRequest) -> list[Tensor]:
        if len(request.inputs) < 2 or not self._spec.inputs or self._spec.open_inputs:
            return request.inputs
        by_name = {tensor.name: tensor for tensor in request.inputs}
        return [by_name[spec.name] for spec in self._spec.inputs]

    def _joined(self, like: Tensor) -> Tensor:
        name = like.name
        if name in self._filled:
            data = self._filled[name][: self.rows]
            declared = self._spec.input(name)
            kind = like.datatype if declared is None else declared.datatype
            return Tensor(name, kind, data.shape, data)
        elements: list[Element] = list(
            itertools.chain.from_iterable(
                _tensor(ticket.request, name).data for ticket in self.tickets
            )
        )
        return Tensor(name, like.datatype, (self.rows, *like.shape[1:]), elements)

    def _copy_raw(self) -> None:
        """Copy the raw tensors of requests that have become part of a joined batch."""
        new = self.tickets[self._copied :]
        first: InferRequest = self.tickets[0].request
        for like in first.inputs:
            name = like.name
            if name in self._images or not isinstance(like.data, np.ndarray):
                continue
            target = self._rows(name, like.datatype, like.shape[1:])
            row = sum(ticket.rows for ticket in self.tickets[: self._copied])
            copied = 0
            for ticket in new:
                data = _tensor(ticket.request, name).data
                target[row : row + ticket.rows] = data
                row += ticket.rows
                copied += data.nbytes  # type: ignore[union-attr]
            arena.count_copy(copied)
        self._copied = len(self.tickets)

    def _add_with_images(self, ticket: QueuedTicket) -> None:
        """Add one request, its images decoded and its raw tensors for image inputs copied."""
        request: InferRequest = ticket.request
        for tensor in request.inputs:
            images = self._images.get(tensor.name)
            if images is None:
                continue
            spec = self._spec.input(tensor.name)
            assert spec is not None
            if isinstance(tensor.data, np.ndarray):
                target = self._rows(tensor.name, spec.datatype, tensor.shape[1:])
                target[self.rows : self.rows + ticket.rows] = tensor.data
                arena.count_copy(tensor.data.nbytes)
                continue
            try:
                shape = images.output_shape(tensor.data, ticket.rows)
                target = self._rows(tensor.name, spec.datatype, shape[1:])
                errors = images.prepare(tensor.data, target, self.rows)
            except KsrvError as error:
                errors = [error]
            bad = next((error for error in errors if error is not None), None)
            if bad is not None:
                self.failed.append((ticket, bad))
                return
        self.tickets.append(ticket)
        self.rows += ticket.rows

    def _rows(self, name: str, kind: str, tail: tuple[int, ...]) -> Array:
        """Return the array that holds an input's rows, leased on first use and grown when needed."""
        array = self._filled.get(name)
        if array is not None and len(array) >= self._room:
            return array
        dtype = np.dtype(datatype.dtype_string(kind))
        shape = (self._room, *tail)
        try:
            block = self._lease(math.prod(shape) * dtype.itemsize)
        except MemoryError as error:
            raise HandlerFailed("the server has no memory for the batch.") from error
        grown = np.ndarray(shape, dtype, block)
        if array is not None:
            grown[: self.rows] = array[: self.rows]
            arena.count_copy(array[: self.rows].nbytes)
        self._filled[name] = grown
        return grown


def _tensor(request: InferRequest, name: str) -> Tensor:
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise KeyError(name)  # admission gave the requests of one group the same names

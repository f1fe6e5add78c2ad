"""Handlers that answer piece by piece: generators, and lists with one generator for each row.

Each value that a generator yields is a chunk (`chunk_forms.py`) for every request of the batch. A list of generators
is run in turns, and the request of a row whose generator is exhausted ends while the others continue.

`run_generator` runs a stream on the thread of its batch; `ksrv/handlers/concurrent.py` runs it in a coroutine. Both
iterate over `iterated` and give each chunk to a `ChunkStream`. If the requests stream, the ChunkStream sends the chunk
to the clients (`ExecutorInputs.emit`). Otherwise it collects the chunks, and `JoinedChunks` makes one answer of them:
texts are concatenated, and a stream without chunks is an empty text. Numbers cannot be joined, so such a client gets an
error that asks it to stream.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from ksrv.errors import StreamNeeded, quote
from ksrv.handlers.batch import checked_failures, headers_so_far
from ksrv.handlers.streaming.chunk_forms import ENDED, absent_rows
from ksrv.model.spec import TensorSpec
from ksrv.request import Element, ExecutorInputs, ExecutorOutputs, Tensor

if TYPE_CHECKING:
    from ksrv.handlers.batch import Batch

Read = Callable[[Any, ExecutorInputs, Collection[int]], ExecutorOutputs]
"""Makes tensors of a chunk, in which the given rows have no value. Raises KsrvError if the chunk does not fit."""

_ASK = "ask for it with 'Accept: text/event-stream', or over ModelStreamInfer"


def is_stream(result: Any) -> bool:
    """Tell whether a handler's result is a generator, or a list of generators."""
    if type(result) is list and result:
        result = result[0]
    return type(result) in (GeneratorType, AsyncGeneratorType)


def may_stream(handler: Any) -> bool:
    """Tell whether a handler may answer in parts: its class or its file has a generator, or calls a sending function.

    This looks at the compiled code only, because metadata reports the result before the first request.
    """
    subject = getattr(handler, "function", handler)
    if inspect.isfunction(subject):
        found = [subject]
    else:
        bases = type(subject).__mro__
        classes = [base for base in bases if not base.__module__.startswith("ksrv.")]
        members = [value for base in classes for value in vars(base).values()]
        found = [member for member in (getattr(each, "__func__", each) for each in members)
                 if inspect.isfunction(member)]  # fmt: skip
    # The other functions of the same files, which the handler may call.
    beside = [other for owner in found for other in owner.__globals__.values()
              if inspect.isfunction(other) and other.__globals__ is owner.__globals__]  # fmt: skip
    # A context manager is written as a generator, but its caller sees no generator.
    users = [each for each in (*found, *beside) if each.__globals__.get("__name__") != "contextlib"]
    return any(_has_parts(inspect.unwrap(each).__code__) for each in users)


def _has_parts(code: CodeType) -> bool:
    """Tell whether code, or code nested in it, is a generator or uses the names of the calls that send."""
    generates = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
    if generates and code.co_name != "<genexpr>":
        return True
    names = {*code.co_names, *code.co_varnames}
    if names.issuperset(("batch", "send")) or "send_intermediate_predict_response" in names:
        return True
    return any(_has_parts(part) for part in code.co_consts if isinstance(part, CodeType))


@dataclass(eq=False)
class ChunkStream:
    """Takes the chunks of one batch: sends them to the clients, or joins them if the requests do not stream.

    A batch holds either requests that stream or requests that do not, so `inputs.emit` decides for all of them.

    Args:
        read: Makes tensors of a chunk.
        batch: Returns the batch object that the handler uses, in which the handler ends rows and fails requests; None
            before the handler has it.
        fail: Notes in `batch.failures` that the request of an index has failed.
        waits: Whether sending a chunk waits for slow clients; False in an event loop, which must not block.
    """

    inputs: ExecutorInputs
    outputs: Sequence[TensorSpec]
    read: Read
    batch: Callable[[], "Batch | None"]
    fail: Callable[[int, BaseException], None]
    waits: bool = True
    _emitted: bool = field(default=False, init=False)
    # Indices of requests whose end was sent to their clients.
    _end_sent: set[int] = field(default_factory=set, init=False)
    # Indices of requests that a chunk has failed.
    _refused: set[int] = field(default_factory=set, init=False)
    # Rows that need no further chunk: ended by the generator or the handler, failed, or without a client.
    _ended_rows: set[int] = field(default_factory=set, init=False)
    _known_ends: int = field(default=0, init=False)  # entries of `_ended_rows` at the last look

    def __post_init__(self) -> None:
        self._emit = self.inputs.emit
        self._send = self._emit if self.waits or self._emit is None else self._emit.offer
        # It writes chunks in the form of the declared outputs, which an explanation does not have.
        self._writer = None if self._emit is None or self.inputs.explain else self._emit.writer
        self._request_count = len(self.inputs.requests)  # read for each chunk
        self._joined = [JoinedChunks(self.outputs) for _ in self.inputs.requests]

    def take(self, chunk: Any) -> bool:
        """Send or keep one chunk.

        Returns:
            Whether a client still waits for the next chunk.

        Raises:
            KsrvError: The chunk does not fit the batch.
        """
        if self._writer is not None:
            # Clients that still listen; -1 if the chunk was not written, because Python must read it.
            listening = self._writer.write(chunk)
            if listening == self._request_count and not self._has_news():
                return True
            if listening >= 0:
                return self._send_ended_rows()
        absent = absent_rows(chunk)
        if len(absent) < self.inputs.rows:
            made = self.read(chunk, self.inputs, absent)
            for index, failure in made.failures.items():
                self._refuse(index, failure)
            if self._emit is None:
                self._join(made, absent)
            elif made.only is None or made.only:
                batch = self.batch()
                if batch is not None:
                    made.headers.update(headers_so_far(batch))
                self._emitted = True
                self._send(made)
        if self._emit is None:
            return len(self._refused) < self._request_count
        return self._send_ended_rows()

    def _has_news(self) -> bool:
        """Tell whether the handler has ended rows or failed requests, or another row has ended since the last look."""
        batch = self.batch()
        if batch is not None and (batch.ended_rows or batch.failures):
            return True
        return len(self._ended_rows) != self._known_ends

    def _join(self, made: ExecutorOutputs, absent: Collection[int]) -> None:
        """Add a chunk to the joined answers of the requests that it is for: all, or the requests in `made.only`."""
        for index, (request, joined) in enumerate(
            zip(self.inputs.requests, self._joined, strict=True)
        ):
            if index in self._refused or (made.only is not None and index not in made.only):
                continue
            rows = request.slice
            if made.parts is not None:
                first, end = made.parts[index]
                tensors = made.tensors[first:end]
            elif self._request_count == 1:
                tensors = made.tensors
            else:
                tensors = [tensor.rows(rows.start, rows.stop) for tensor in made.tensors]
            missing = {row - rows.start for row in absent if rows.start <= row < rows.stop}
            try:
                joined.add(tensors, missing)
            except StreamNeeded as error:
                self._refuse(index, error)

    def _refuse(self, index: int, error: BaseException) -> None:
        """Fail a request. Its rows count as ended, so that `_next` closes their generators."""
        rows = self.inputs.requests[index].slice
        self.fail(index, error)
        self._refused.add(index)
        self._ended_rows.update(range(rows.start, rows.stop))

    def _send_ended_rows(self) -> bool:
        """Send the end of requests that failed or whose rows have all ended; return whether a client still listens."""
        batch, emit = self.batch(), self._emit
        if emit is None:
            return True
        if batch is not None and (batch.ended_rows or batch.failures):
            self._ended_rows |= batch.ended_rows
            failed = checked_failures(batch)
            failed = {i: error for i, error in failed.items() if i not in self._end_sent}
            self._end(failed.keys(), failed)
        requests = self.inputs.requests
        if self._ended_rows:
            done = [
                index
                for index, request in enumerate(requests)
                if index not in self._end_sent
                and self._ended_rows.issuperset(range(request.slice.start, request.slice.stop))
            ]
            self._end(done, {})
        listening = emit.listening()
        if len(listening) < len(requests):
            for index, request in enumerate(requests):
                if index not in listening:
                    self._ended_rows.update(range(request.slice.start, request.slice.stop))
        self._known_ends = len(self._ended_rows)
        return bool(listening)

    def _end(self, indices: Any, failed: dict[int, Any]) -> None:
        """Send the end of requests: a chunk without tensors."""
        ended = frozenset(indices)
        if ended:
            self._end_sent |= ended
            self._emitted = True
            self._send(ExecutorOutputs([], failed, only=ended))

    def row_ended(self, row: int) -> None:
        """Note that a row gets nothing more."""
        self._ended_rows.add(row)

    def row_failed(self, row: int, error: BaseException) -> None:
        """Fail the request of a row whose generator raised.

        If the requests stream, `_send_ended_rows` sends the failure and ends the other rows of the request. Otherwise
        the other rows run on.
        """
        requests = enumerate(self.inputs.requests)
        self.fail(next(index for index, part in requests if row < part.slice.stop), error)
        self._ended_rows.add(row)

    def wants(self, row: int) -> bool:
        """Tell whether the request of a row waited after the last chunk; does not look at the client again."""
        return row not in self._ended_rows

    def result(self) -> ExecutorOutputs:
        """Return the final answer: without tensors if the chunks were sent."""
        if self._emit is None:
            return self._joined_answer()
        if not self._emitted:
            # The worker learns from a chunk for no request that the handler streams.
            self._send(ExecutorOutputs([], only=frozenset()))
        return ExecutorOutputs([])

    def _joined_answer(self) -> ExecutorOutputs:
        tensors: list[Tensor] = []
        parts: dict[int, tuple[int, int]] = {}
        for index, (request, joined) in enumerate(
            zip(self.inputs.requests, self._joined, strict=True)
        ):
            if index in self._refused:
                continue
            first = len(tensors)
            try:
                tensors += joined.tensors(request.rows)
            except StreamNeeded as error:
                self._refuse(index, error)
            parts[index] = (first, len(tensors))
        return ExecutorOutputs(tensors, parts=parts if self._request_count > 1 else None)


class JoinedChunks:
    """Joins the chunks of one request into one answer, for a client that does not stream."""

    def __init__(self, outputs: Sequence[TensorSpec] = ()) -> None:
        self._outputs = outputs
        self._texts: dict[str, list[list[Element]]] = {}
        # The first tensor of each output, in order. `_texts` has the texts of all chunks.
        self._first: list[Tensor] = []
        self._count = 0

    def add(self, tensors: list[Tensor], absent: set[int]) -> None:
        """Add one chunk.

        Args:
            absent: The rows of the request that have no value in the chunk.

        Raises:
            StreamNeeded: The chunk has numbers, and is not the first or lacks a row.
        """
        self._count += 1
        for tensor in tensors:
            if self._count > 1 and tensor.datatype != "BYTES":
                raise StreamNeeded(
                    f"the output {quote(tensor.name)} is a stream of {tensor.datatype} tensors; {_ASK}"
                )
            if absent and tensor.datatype != "BYTES":
                raise StreamNeeded(
                    f"the stream of the output {quote(tensor.name)} is empty in a row of the request; {_ASK}"
                )
            if not isinstance(tensor.data, list):
                kept = Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data.copy())
                self._first.append(kept)
                continue
            texts = self._texts.setdefault(tensor.name, [])
            if not texts:
                texts += [[] for _ in tensor.data]
                self._first.append(tensor)
            if len(texts) != len(tensor.data):
                raise StreamNeeded(
                    f"the output {quote(tensor.name)} is a stream of texts whose number changes from "
                    f"{len(texts)} to {len(tensor.data)}; {_ASK}"
                )
            for row, element in enumerate(tensor.data):
                if row not in absent:
                    texts[row].append(element)

    def tensors(self, rows: int) -> list[Tensor]:
        """Return the joined chunks; empty texts if there were no chunks and the outputs are texts.

        Raises:
            StreamNeeded: There were no chunks, and the declared outputs are not texts.
        """
        if not self._count and rows:
            empty = [_empty_texts(output, rows) for output in self._outputs]
            texts = [tensor for tensor in empty if tensor is not None]
            if not texts or len(texts) != len(empty):
                raise StreamNeeded(f"the stream that answers the request is empty; {_ASK}")
            return texts
        return [self._join(tensor) for tensor in self._first]

    def _join(self, tensor: Tensor) -> Tensor:
        if tensor.name not in self._texts:
            return tensor
        elements: list[Element] = [b"".join(parts) for parts in self._texts[tensor.name]]
        return Tensor(tensor.name, "BYTES", tensor.shape, elements)


def _empty_texts(output: TensorSpec, rows: int) -> Tensor | None:
    """Return an empty text for each row; None for an output that is not one text for each row."""
    if output.datatype != "BYTES" or any(size != 1 for size in output.shape[output.batched :]):
        return None
    count = rows if output.batched else 1
    shape = (count, *[1] * len(output.shape[1:])) if output.shape else ()
    return Tensor(output.name, "BYTES", shape, [b""] * count)


# ---- generators ---------------------------------------------------------------------------------


def run_generator(chunks: Any, stream: ChunkStream, loop: "HandlerLoop") -> None:
    """Run a handler's stream until it ends or no client waits for it. Runs on the thread of the batch.

    Args:
        chunks: The handler's result: a generator, an asynchronous generator, or a list with one of these for each row.
        stream: Takes the chunks.
        loop: Runs asynchronous generators.
    """

    async def run() -> None:
        async with aclosing(iterated(chunks, stream)) as running:
            async for chunk in running:
                if not stream.take(chunk):
                    return

    if _is_asynchronous(chunks):
        loop.run(run())
    else:
        # Ordinary generators never suspend the coroutine, so a single send runs all of it. It needs no event loop, and
        # the handler may start one itself.
        with suppress(StopIteration):
            run().send(None)


def _is_asynchronous(chunks: Any) -> bool:
    rows = chunks if type(chunks) is list else [chunks]
    return any(type(row) is AsyncGeneratorType for row in rows)


async def iterated(chunks: Any, stream: ChunkStream) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a handler's stream, and close its generators at the end.

    Args:
        chunks: See `run_generator`. A list of generators yields lists with the next chunk of each row.
    """
    if type(chunks) is list:
        rows = [iterated(row, stream) for row in chunks]
        try:
            while True:
                coming = [_next(row, generator, stream) for row, generator in enumerate(rows)]
                if _is_asynchronous(chunks):
                    values = await asyncio.gather(*coming)
                else:
                    values = [await value for value in coming]
                yield values
                if all(value is ENDED for value in values):
                    return
        finally:
            for generator in rows:
                await generator.aclose()
    elif type(chunks) is AsyncGeneratorType:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    else:
        with closing(chunks):
            for chunk in chunks:
                yield chunk


async def _next(row: int, chunks: AsyncGenerator[Any, None], stream: ChunkStream) -> Any:
    """Return the next chunk of a row, or ENDED. If its generator raises, only the request of the row fails."""
    try:
        if not stream.wants(row):
            await chunks.aclose()
            return ENDED
        return await anext(chunks)
    except StopAsyncIteration:
        stream.row_ended(row)
    except BaseException as error:
        if is_given_up(error):
            raise
        stream.row_failed(row, error)
    return ENDED


GIVEN_UP = "no client waits for the batch any more"
"""The message with which the worker cancels a batch's task. A handler that cancels itself uses another message."""


def is_given_up(error: BaseException) -> bool:
    """Tell whether the worker cancelled the batch's task. A handler can raise `CancelledError`, too."""
    return isinstance(error, asyncio.CancelledError) and error.args == (GIVEN_UP,)


def postprocessed(chunks: Any, postprocess: Callable[[Any], Any]) -> Any:
    """Return a stream that applies `postprocess` to each chunk.

    Args:
        chunks: The result of `inference`: a stream, or a coroutine.
    """
    if type(chunks) is list:
        return chunks  # Their chunks are single rows, but `postprocess` takes whole batches.
    if type(chunks) is CoroutineType:
        return _awaited(chunks, postprocess)
    if isinstance(chunks, AsyncGenerator):
        return _postprocessed_later(chunks, postprocess)
    return _postprocessed(chunks, postprocess)


def _postprocessed(chunks: Any, postprocess: Callable[[Any], Any]) -> Iterator[Any]:
    with closing(chunks):
        for chunk in chunks:
            yield postprocess(chunk)


async def _awaited(outputs: Any, postprocess: Callable[[Any], Any]) -> Any:
    found = await outputs
    if is_stream(found):
        return postprocessed(found, postprocess)
    made = postprocess(found)
    return await made if type(made) is CoroutineType else made


async def _postprocessed_later(
    chunks: AsyncGenerator[Any, None], postprocess: Callable[[Any], Any]
) -> AsyncIterator[Any]:
    async with aclosing(chunks):
        async for chunk in chunks:
            made = postprocess(chunk)
            yield await made if type(made) is CoroutineType else made


class HandlerLoop:
    """The event loop of a handler that runs one batch at a time, on the thread of the batch. Made at the first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any) -> Any:
        """Return the result of a coroutine."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        """Free the loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

"""Calls from a handler to other models of the server: `self.context.models["resnet"].infer({...})`.

A call is a request like that of a client: it is checked, queued and joined with other requests of the called
model. It has the deadline of the batch that makes it, and is cancelled when no client waits for that batch any
more.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed
from ksrv.handlers.batch import parameter_of
from ksrv.handlers.outputs import as_tensor
from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.request import (
    Array,
    ExecutorInputs,
    InferRequest,
    Parameters,
    RequestedOutput,
    RequestHandle,
    Tensor,
)

Value = Any
"""An array, a torch tensor, a `Tensor`, or a list of numbers, texts or bytes, with one entry for each row."""


SERVER = "$server"
"""Stands for a model's name in requests of a handler to the server itself. Clients cannot send such requests."""

Submit = Callable[[InferRequest, ExecutorInputs | None], RequestHandle]
"""Submits a request to another model, on behalf of the batch that is running."""


def refuse_calls(request: InferRequest, caller: ExecutorInputs | None) -> RequestHandle:
    """A `Submit` that refuses every call, for handlers that run outside of a server."""
    raise HandlerFailed(
        f"the handler called the model {request.model_name}, but runs outside of a server"
    )


class ModelCall:
    """A call that was submitted; also awaitable."""

    def __init__(self, pending: RequestHandle) -> None:
        self._pending = pending
        self._outputs: list[Tensor] | None = None

    def result(self) -> dict[str, Array]:
        """Return the outputs by name, waiting for them; BYTES are object arrays of `bytes`.

        The arrays belong to the caller, who may write to them. Further calls return the same arrays.

        Raises:
            KsrvError: The call failed.
        """
        return {tensor.name: array_of(tensor) for tensor in self._own_outputs()}

    async def tensors(self) -> dict[str, Tensor]:
        """Return the outputs by name as tensors, which know their datatypes.

        Raises:
            KsrvError: The call failed.
        """
        await self._ended()
        return {tensor.name: tensor for tensor in self._own_outputs()}

    def _own_outputs(self) -> list[Tensor]:
        if self._outputs is None:
            self._outputs = _writable(self._pending.wait().outputs)
        return self._outputs

    def cancel(self) -> bool:
        """Cancel the call; return whether it was still open."""
        return self._pending.cancel()

    def done(self) -> bool:
        """Tell whether the call has ended, so that `result` does not wait."""
        return self._pending.done()

    def __await__(self) -> Generator[Any, None, dict[str, Array]]:
        return self._wait().__await__()

    async def _wait(self) -> dict[str, Array]:
        await self._ended()
        return self.result()

    async def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._pending.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise


class CalledModel:
    """Another model of the server."""

    def __init__(
        self, name: str, submit: Submit, caller: Callable[[], ExecutorInputs | None]
    ) -> None:
        self._name = name
        self._submit = submit
        self._caller = caller

    def infer(self, inputs: Mapping[str, Value], **options: Any) -> dict[str, Array]:
        """Call the model and wait for its outputs.

        Args:
            inputs: See `submit`.
            options: See `submit`.

        Returns:
            The outputs by name; BYTES are object arrays of `bytes`.

        Raises:
            KsrvError: The call failed, with the error that a client of the model would get.
        """
        return self.submit(inputs, **options).result()

    def submit(
        self,
        inputs: Mapping[str, Value],
        *,
        version: str = "",
        outputs: tuple[str, ...] = (),
        parameters: Parameters | None = None,
    ) -> ModelCall:
        """Call the model without waiting.

        Args:
            inputs: The inputs by name. They must not be changed until the call has ended; the model sees
                them read-only.
            version: The version's name; "" for the highest.
            outputs: The names of the requested outputs; () for all.
            parameters: Bools, numbers and texts of Python or numpy, by name; integers have 64 bits.

        Raises:
            TypeError: A name, the version or a parameter is of another type.
            ValueError: The protocol cannot carry a parameter.
            KsrvError: The call is refused: unknown model, wrong inputs, full queue, a cycle of calls.
        """
        request = InferRequest(
            self._name,
            _text("version", version),
            inputs=[
                input_tensor(_text("name of an input", name), value)
                for name, value in inputs.items()
            ],
            outputs=[RequestedOutput(_text("name of an output", name)) for name in outputs],
            parameters=dict(parameter_of(*item) for item in (parameters or {}).items()),
        )
        return ModelCall(self._submit(request, self._caller()))


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} is a {type(value).__name__}, not a text")
    return str.__str__(value)


class Models(Mapping[str, CalledModel]):
    """The other models of the server, by name. Whether a model exists is checked when it is called.

    The server's models are not known here: iteration and length count only the names that the handler has used.
    """

    def __init__(self, submit: Submit, caller: Callable[[], ExecutorInputs | None]) -> None:
        self._submit = submit
        self._caller = caller
        self._known: dict[str, CalledModel] = {}

    def __getitem__(self, name: str) -> CalledModel:
        if not isinstance(name, str) or not name:
            raise KeyError(name)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = CalledModel(name, self._submit, self._caller)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def input_tensor(name: str, value: Value) -> Tensor:
    """Return an input of a call, which the called model sees read-only."""
    if type(value) is np.ndarray and value.flags.c_contiguous:
        datatype = NAME_BY_DTYPE.get(value.dtype)
        if datatype is not None:
            return _read_only(Tensor(name, datatype, value.shape, value))
    if isinstance(value, Tensor):
        return _read_only(Tensor(name, value.datatype, value.shape, value.data))
    if isinstance(value, (list, tuple)) and not _has_texts(value):
        value = np.asarray(value)
    return _read_only(as_tensor(name, value if not isinstance(value, tuple) else list(value)))


def _read_only(tensor: Tensor) -> Tensor:
    if isinstance(tensor.data, np.ndarray):
        tensor.data = tensor.data.view()
        tensor.data.flags.writeable = False  # the calling handler still uses the memory
    return tensor


def _writable(outputs: list[Tensor]) -> list[Tensor]:
    """Return outputs that the caller can write to, without two outputs sharing memory.

    A cached answer is read-only. A called model may return read-only arrays, or the same array as two outputs.
    """
    owned: list[Tensor] = []
    for tensor in outputs:
        data = tensor.data
        if isinstance(data, np.ndarray):
            shared = any(
                isinstance(part.data, np.ndarray) and np.may_share_memory(part.data, data)
                for part in owned
            )
            if shared or not data.flags.writeable:
                buffer_pool.count_copy(data.nbytes)
                tensor = Tensor(
                    tensor.name, tensor.datatype, tensor.shape, data.copy(), tensor.parameters
                )
        owned.append(tensor)
    return owned


def _has_texts(values: Any) -> bool:
    return bool(len(values)) and isinstance(values[0], (str, bytes, bytearray, memoryview))


def array_of(tensor: Tensor) -> Array:
    """Return a tensor's data as an array; BYTES are an object array of `bytes`."""
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    array = np.empty(len(tensor.data), dtype=object)
    for place, element in enumerate(tensor.data):
        array[place] = bytes(element)
    return array.reshape(tensor.shape)

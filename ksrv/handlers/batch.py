"""The batch as a handler sees it: inputs by name, the request of each row, and the handler's answers to each request.

Arrays are passed to the handler as the engine assembled them. Other forms (a torch tensor, an object array of
bytes, the NCHW view of images) are made when the handler first asks for them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed, InferenceError, KsrvError, check_field, check_text, quote
from ksrv.handlers.devices.device import bfloat16
from ksrv.handlers.sequences import Sequence as RowSequence
from ksrv.limits import HANDLER_HEADERS, HEADER_OVERHEAD
from ksrv.model.spec import is_content_type
from ksrv.request import (
    INTEGERS,
    Array,
    ExecutorInputs,
    ImagePlacement,
    Parameter,
    RequestPart,
    Tensor,
)

if TYPE_CHECKING:
    import torch


class Batch(Mapping[str, Array]):
    """One batch of requests: a mapping of the inputs' names to their arrays.

    Args:
        inputs: The batch that the engine assembled.
        layouts: The layout in which the handler sees each image input: NHWC or NCHW.
        put: Returns an array as a torch tensor on the handler's device.
        send: Sends an intermediate answer of this batch, with the headers that are set so far.
        optional: The names of the inputs that a request may leave out.

    Attributes:
        names: The names of the inputs, in order.
        optional: As given.
        absent: The names of the optional inputs that the requests of the batch have left out.
        rows: How many rows the batch has.
        explain: Whether the clients asked for explanations.
        failures: The errors of failed requests, by index in `requests`.
        headers: Response headers, by index in `requests`.
        parameters: Response parameters, by index in `requests`.
        ended_rows: The rows that get no further chunk of a stream.
        sequences: The sequence of each row, if the model serves sequences.
    """

    def __init__(
        self,
        inputs: ExecutorInputs,
        layouts: Mapping[str, str],
        put: Callable[[Array], Any],
        send: Callable[[ExecutorInputs, Any, dict[int, dict[str, str]]], bool] | None = None,
        optional: Sequence[str] = (),
    ) -> None:
        self.rows = inputs.rows
        self.explain = inputs.explain
        self.failures: dict[int, KsrvError] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.parameters: dict[int, dict[str, Parameter]] = {}
        self.ended_rows: set[int] = set()
        self.sequences: list[RowSequence] = []
        self._inputs = inputs
        self._tensors = inputs.tensors
        self._layouts = layouts
        self._put = put
        self._send = send
        self._arrays: dict[str, Array] = {}
        self._lengths: dict[str, Array] | None = None
        self.names = tuple(inputs.tensors)
        self.optional = tuple(optional)
        self.absent = tuple(name for name in optional if name not in inputs.tensors)

    @property
    def requests(self) -> Sequence[RequestPart]:
        """The requests: each has its `slice` of the rows, its number of `rows`, its id, headers and parameters.

        A request also has the parameters of its inputs and outputs, by name.
        """
        return self._inputs.requests

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    # Mapping would compare the arrays, whose `==` returns an array and no bool.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        """Return an input as an array of shape [rows, ...].

        Args:
            name: The input's name.

        Returns:
            The array. BYTES are an object array of `bytes`, BF16 an array of its 16-bit patterns,
            images of an input with `model_layout: NCHW` their NCHW view. An optional input that was left
            out is None.

        Raises:
            KeyError: The input is unknown.
        """
        array = self._arrays.get(name)
        if array is None:
            if name in self.absent:
                return None  # type: ignore[return-value]  # whoever declares an optional input knows
            entry = self._tensors.get(name) or self._entry(name)
            array = self._arrays[name] = self._array(entry)
        return array

    def datatype(self, name: str) -> str:
        """Return the KServe v2 datatype of an input.

        Args:
            name: The input's name.
        """
        return self._entry(name).datatype

    def tensor(self, name: str) -> "torch.Tensor":
        """Return an input as a torch tensor on the handler's device.

        On the CPU the tensor shares the memory of the array. A read-only array is copied first, so that
        an in-place operator cannot change it.

        Args:
            name: The input's name.

        Returns:
            The tensor; bfloat16 for BF16. An optional input that was left out is None.

        Raises:
            KeyError: The input is unknown.
            TypeError: The input is BYTES, for which torch has no datatype.
        """
        if name in self.absent:
            return cast("torch.Tensor", None)
        entry = self._entry(name)
        if entry.datatype == "BYTES":
            raise TypeError(f"the input {name!r} is BYTES, which is not a torch tensor")
        tensor = cast("torch.Tensor", self._put(self[name]))
        return tensor.view(bfloat16()) if entry.datatype == "BF16" else tensor

    @property
    def lengths(self) -> dict[str, Array]:
        """The lengths of the rows without their padding, by the names that the model gives them.

        Each value is an INT64 array of shape [rows]. The dictionary is empty if the model declares no lengths.
        """
        if self._lengths is None:
            given = self._inputs.lengths()
            counts = [rows for _, rows in given]
            self._lengths = {
                name: np.repeat([lengths.get(name, 0) for lengths, _ in given], counts)
                for name in (given[0][0] if given else ())
            }
        return self._lengths

    @property
    def images(self) -> list[ImagePlacement]:
        """The place of each image in its row, for the first input that takes images.

        `images[row]` has the width and height of the image, its `scale` and its `left` and `top` in the row, and
        `images[row].to_image(boxes)` maps boxes back to the image. If rows were sent as numbers, the size of a row is
        the image's size.
        """
        name = next(iter(self._layouts), "")
        found: list[ImagePlacement] = []
        for request in self.requests:
            own = request.images.get(name)
            if own is None and name in self._tensors:
                height, width = self._tensors[name].shape[1:3]
                place = ImagePlacement(width, height, row_width=width, row_height=height)
                own = [place] * request.rows
            found += own or ()
        return found

    def request_of(self, row: int) -> int:
        """Return the index in `requests` of the request that owns a row.

        Args:
            row: The row.

        Raises:
            IndexError: The batch has no such row.
        """
        at = index(row)
        for number, request in enumerate(self.requests):
            if request.slice.start <= at < request.slice.stop:
                return number
        raise IndexError(f"row {at} of a batch of {self.rows} rows")

    def fail(self, row: int, message: str, status: int = 400) -> None:
        """Fail the request that owns a row; its rows stay in place and its output is dropped.

        Args:
            row: The row.
            message: The text for the client.
            status: An HTTP status from 400 to 599.

        Raises:
            IndexError: The batch has no such row.
            ValueError: The message cannot be sent, or the status is not an error status.
        """
        self.failures.setdefault(self.request_of(row), InferenceError(message, status))

    def set_header(self, row: int, name: str, value: str | float) -> None:
        """Add a header to the response of the request that owns a row.

        Args:
            row: The row.
            name: The header's name. Content-Type is the type of the file in the only BYTES output.
            value: Its value, a text or a number of Python or numpy.

        Raises:
            IndexError: The batch has no such row.
            TypeError: The name or the value is of another type.
            ValueError: A header cannot have such a name or value.
        """
        name, text = header_of(name, value)
        self.headers.setdefault(self.request_of(row), {})[name] = text

    def set_parameter(self, row: int, name: str, value: Parameter) -> None:
        """Add a parameter to the response of the request that owns a row.

        Args:
            row: The row.
            name: The parameter's name.
            value: A bool, a number or a text of Python or numpy; integers have 64 bits.

        Raises:
            IndexError: The batch has no such row.
            TypeError: The name or the value is of another type.
            ValueError: The protocol cannot carry the name or the value.
        """
        name, value = parameter_of(name, value)
        self.parameters.setdefault(self.request_of(row), {})[name] = value

    def send(self, outputs: Any) -> bool:
        """Send an intermediate answer to every request of the batch, before the final one.

        It waits for clients that read slowly, but not on the event loop of a handler with coroutines: there
        the request of a client that has fallen too far behind is ended.

        Args:
            outputs: Outputs in any form that `postprocess` may return, with every row of the batch.

        Returns:
            Whether the answer was sent. False if no client takes intermediate answers (clients that do
            not stream get only the final answer), or no client waits for the batch any more.

        Raises:
            HandlerFailed: The outputs do not fit the batch or the declared outputs.
        """
        if self._send is None or not self.listening():
            return False
        return self._send(self._inputs, outputs, headers_so_far(self))

    def end(self, row: int) -> None:
        """End the stream of the request that owns a row, while the other requests of the batch continue.

        A request with several rows ends once each row has ended; the client learns of it with the next chunk.

        Args:
            row: The row.

        Raises:
            IndexError: The batch has no such row.
        """
        self.request_of(row)
        self.ended_rows.add(index(row))

    def listening(self, row: int | None = None) -> bool:
        """Whether a client still waits for the batch's answer.

        A streaming request waits no more if its client has left or its deadline has passed. Then a
        handler that works only for this request may stop, and its result is dropped. If no
        request of the batch takes intermediate answers, this is not known, and the result is True.

        Args:
            row: A row, to ask only for the request that owns it; None for any request of the batch.

        Raises:
            IndexError: The batch has no such row.
        """
        request = None if row is None else self.request_of(row)
        emit = self._inputs.emit
        if emit is None:
            return True
        waiting = emit.listening()
        return bool(waiting) if request is None else request in waiting

    def _entry(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            known = ", ".join(self._tensors) or "none"
            raise KeyError(f"the batch has no input {name!r}; it has {known}") from None

    def _array(self, entry: Tensor) -> Array:
        if not isinstance(entry.data, np.ndarray):
            array = np.empty(len(entry.data), dtype=object)
            for position, element in enumerate(entry.data):
                if not isinstance(element, bytes):
                    buffer_pool.count_copy(len(element))
                    element = bytes(element)
                array[position] = element
            return array.reshape(entry.shape)
        if self._layouts.get(entry.name) == "NCHW" and entry.data.ndim == 4:
            return entry.data.transpose(0, 3, 1, 2)
        return entry.data


def header_of(name: object, value: object) -> tuple[str, str]:
    """Return the name and the value of a response header as plain texts.

    Raises:
        TypeError: The name is not text, or the value neither a text nor a number.
        ValueError: A header cannot have such a name or value.
    """
    name, plain = _plain_pair("header", name, value)
    field = name, str(plain)
    check_field(*field)
    if name.lower() == "content-type" and not is_content_type(field[1]):
        raise ValueError(
            f"the header {name!r} is {field[1]!r:.64}; expected the media type of a file, such as audio/wav or image/png"
        )
    return field


def parameter_of(name: object, value: object) -> tuple[str, Parameter]:
    """Return the name and the value of a response parameter as built-in types of Python.

    Raises:
        TypeError: The name is not text, or the value is neither a bool nor a number nor a text.
        ValueError: The protocol cannot carry the name or the value.
    """
    name, plain = _plain_pair("parameter", name, value)
    check_text("the name of a parameter", name)
    if isinstance(plain, str):
        check_text(f"the parameter {name!r}", plain)
    elif isinstance(plain, int) and plain not in INTEGERS:
        raise ValueError(
            f"the parameter {name!r} is an integer of {plain.bit_length()} bits; the protocol carries "
            f"{INTEGERS[0]} to {INTEGERS[-1]}"
        )
    return name, plain


def _plain_pair(what: str, name: object, value: object) -> tuple[str, Parameter]:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a {type(name).__name__}, not a text")
    plain = _plain(value)
    if plain is None:
        raise TypeError(f"the {what} {name!r} is a {type(value).__name__}")
    return str.__str__(name), plain


def _plain(value: object) -> Parameter | None:
    """Return a bool, a number or a text without its subclass; None for any other value.

    Messages to and from handler processes support only the built-in types. Besides, `in INTEGERS`, a range, is quick
    only for a plain int: it compares an integer of a subclass with all numbers of the range, one by one.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else None


def check_answers(batch: Batch) -> None:
    """Check the failures, headers and parameters of a batch, and turn the values into built-in types of Python.

    The methods of `Batch` check them too, but a handler may also write into these dictionaries itself.

    Raises:
        IndexError: The batch has no such request.
        TypeError: See `header_of` and `parameter_of`; or a failure is not a `KsrvError`.
        ValueError: See `header_of` and `parameter_of`.
    """
    # Most handlers write nothing, and the checks take a sixth of the time of a batch of one row.
    if batch.failures == {} and batch.headers == {} and batch.parameters == {}:
        return
    batch.failures = checked_failures(batch)
    batch.headers = headers_so_far(batch)
    batch.parameters = {
        at: dict(parameter_of(*pair) for pair in own.items())
        for at, own in _by_request(batch.parameters, "parameters", batch)
    }


def fail_rest(batch: Batch, failure: KsrvError) -> bool:
    """Fail the requests of a batch that have no error yet.

    Returns:
        Whether any request had an error before.
    """
    own = {at: error for at, error in batch.failures.items() if isinstance(error, KsrvError)}
    batch.failures = {at: own.get(at, failure) for at in range(len(batch.requests))}
    # Dropped, because they may be the reason of the failure.
    batch.headers, batch.parameters = {}, {}
    return bool(own)


def excess(headers: Mapping[str, str]) -> HandlerFailed | None:
    """Return the error for an answer whose headers are too large to be sent; None if they can be sent.

    Args:
        headers: The names and values that the handler chose.
    """
    sizes = {name: len(name) + len(str(text)) + HEADER_OVERHEAD for name, text in headers.items()}
    total = sum(sizes.values())
    if total <= HANDLER_HEADERS:
        return None
    largest = max(sizes, key=sizes.__getitem__)
    return HandlerFailed(
        f"the handler's response headers take {total} bytes, of which {quote(largest)} takes "
        f"{sizes[largest]}; {HANDLER_HEADERS} bytes are allowed, so put large values into outputs"
    )


def headers_so_far(batch: Batch) -> dict[int, dict[str, str]]:
    """Return the response headers that a handler has set by now, by index in `batch.requests`.

    Args:
        batch: The batch.

    Raises:
        IndexError: The batch has no such request.
        TypeError: See `header_of`.
        ValueError: See `header_of`.
    """
    return {
        at: dict(header_of(*pair) for pair in own.items())
        for at, own in _by_request(batch.headers, "headers", batch)
    }


def checked_failures(batch: Batch) -> dict[int, KsrvError]:
    """Return the errors of failed requests, by index in `batch.requests`.

    Raises:
        IndexError: The batch has no such request.
        TypeError: A failure is not a `KsrvError`.
    """
    failures = dict(_by_request(batch.failures, "failures", batch))
    for at, error in failures.items():
        if not isinstance(error, KsrvError):
            raise TypeError(
                f"batch.failures[{at}] is a {type(error).__name__}; it has to be an InferenceError, as batch.fail makes it"
            )
    return failures


def utf8_texts(batch: Batch, name: str) -> Array:
    """Return an input of BYTES as texts, and fail the requests whose texts are not UTF-8.

    Returns:
        An object array of str in the input's shape; "" for each text that is not UTF-8.
    """
    elements = batch[name]
    texts = np.empty(elements.shape, dtype=object)
    for place, element in np.ndenumerate(elements):
        try:
            texts[place] = element.decode("utf-8")
        except UnicodeDecodeError:
            texts[place] = ""
            has_rows = elements.ndim > 0 and len(elements) == batch.rows
            row = place[0] if has_rows else 0  # a batch without rows has one request
            batch.fail(row, f"the text in row {row} of {name!r} is not UTF-8")
    return texts


def _by_request(given: Mapping[int, Any], name: str, batch: Batch) -> Iterator[tuple[int, Any]]:
    requests = len(batch.requests)
    for key, own in given.items():
        at = index(key)
        if not 0 <= at < requests:
            raise IndexError(f"batch.{name} has the request {at}, and the batch has {requests}")
        yield at, own

"""The form of a record: a request and its answer as a line of JSON.

The bytes of a tensor are in the protocol's binary form, in base64: little-endian, in row-major order, with a length of
four bytes before each BYTES element. So every datatype is restored bit for bit, NaN included. Parameters are JSON
values. JSON has no NaN and no infinity, so such parameters become null.
"""

import math
from typing import TypeAlias

import msgspec
import numpy as np

from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.datatype import NAMES, ShapeError, sizes
from ksrv.model.datatypes import DTYPES
from ksrv.request import Array, Element, Parameters, Tensor

WrittenParameters: TypeAlias = dict[str, bool | int | float | str | None]
"""Parameters in a line; None for a number that is not finite."""


class RecordedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input or output.

    Attributes:
        raw: The bytes in the protocol's binary form; None for images that the setting `images: false` leaves out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | None = None

    def tensor(self) -> Tensor:
        """Return the tensor of a request.

        Raises:
            ValueError: The bytes do not fit the datatype and the shape, or were left out.
        """
        if self.raw is None:
            raise ValueError(
                f"the tensor {self.name!r} is an image that was left out of the record"
            )
        if self.datatype not in NAMES:
            raise ValueError(f"the tensor {self.name!r} has the unknown datatype {self.datatype!r}")
        try:
            count, nbytes = sizes(self.datatype, self.shape)
        except ShapeError as error:
            raise ValueError(f"the tensor {self.name!r}: {error}") from None
        if self.datatype == "BYTES":
            elements: list[Element] = bytes_tensor.read(self.raw, count, None, False, self.name)
            return Tensor(self.name, self.datatype, self.shape, elements)
        if len(self.raw) != nbytes:
            raise ValueError(
                f"the tensor {self.name!r} has {len(self.raw)} bytes, and {nbytes} by its datatype and shape"
            )
        values = np.frombuffer(bytearray(self.raw), DTYPES[self.datatype])  # a handler may write
        return Tensor(self.name, self.datatype, self.shape, values.reshape(self.shape))

    def array(self) -> Array:
        """Return the values: BYTES as an array of objects, BF16 as the bit patterns in uint16.

        Raises:
            ValueError: See `tensor`.
        """
        data = self.tensor().data
        if isinstance(data, np.ndarray):
            return data
        elements = np.empty(len(data), object)
        elements[:] = [bytes(element) for element in data]
        return elements.reshape(self.shape)


class Failure(msgspec.Struct, frozen=True):
    """The error with which a request was answered."""

    status: int
    message: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its answer.

    Attributes:
        time: When the request arrived, in seconds since 1970.
        duration_ms: From the arrival of the request to its answer.
        outputs: The outputs of the answer; None if the request failed.
        wanted: The outputs that the client asked for, with their parameters; empty for all.
        chunks: The intermediate answers of a request that streams.
        streamed: Whether the client asked for a stream.
    """

    time: float
    id: str
    model: str
    version: str
    duration_ms: float
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...] | None = None
    failure: Failure | None = None
    parameters: WrittenParameters = {}
    wanted: dict[str, dict[str, bool | int | float | str]] = {}
    headers: dict[str, str] = {}
    answer_parameters: WrittenParameters = {}
    chunks: tuple[tuple[RecordedTensor, ...], ...] = ()
    streamed: bool = False

    def request_parameters(self) -> Parameters:
        """Return the parameters for a new request; a number that was not finite is NaN."""
        return {
            name: math.nan if value is None else value for name, value in self.parameters.items()
        }

    def line(self) -> bytes:
        """Return the record as a line."""
        return msgspec.json.encode(self) + b"\n"


def recorded(tensor: Tensor) -> RecordedTensor:
    """Return a copy of a tensor; its owner may change the tensor afterwards."""
    data = tensor.data
    raw = data.tobytes() if isinstance(data, np.ndarray) else bytes_tensor.encode(data)
    return RecordedTensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw)

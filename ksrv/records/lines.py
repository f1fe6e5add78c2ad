"""One recorded request and its answer, as a line of JSON.

A tensor's bytes are in the protocol's binary form, in base64: little-endian, in row-major order, each element of BYTES behind its
length as four bytes. So every datatype comes back bit for bit, NaN included.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ksrv._native.tensor import datatype as datatypes
from ksrv.request import Element, Tensor

_LENGTH = struct.Struct("<I")


class RecordedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input or output.

    Attributes:
        raw: Its bytes in the protocol's binary form; None for an image that `images: false` leaves out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | None = None

    def elements(self) -> list[bytes]:
        """Return the elements of BYTES.

        Raises:
            ValueError: The bytes end within an element.
        """
        found, at, raw = [], 0, self.raw or b""
        while at < len(raw):
            if at + _LENGTH.size > len(raw):
                raise ValueError(f"the tensor {self.name!r} ends within the length of an element")
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size + length
            if at > len(raw):
                raise ValueError(f"the tensor {self.name!r} ends within an element")
            found.append(raw[at - length : at])
        return found

    def array(self) -> "np.typing.NDArray[Any]":
        """Return the values; elements of BYTES are objects, and BF16 are its bits as UINT16.

        Raises:
            ValueError: The bytes do not fit the datatype and the shape.
        """
        if self.datatype == "BYTES":
            values = np.empty(len(found := self.elements()), object)
            values[:] = found
        elif datatypes.is_datatype(self.datatype):
            values = np.frombuffer(self.raw or b"", np.dtype(datatypes.dtype_string(self.datatype)))
        else:
            raise ValueError(f"the tensor {self.name!r} has the unknown datatype {self.datatype!r}")
        try:
            if min(self.shape, default=0) < 0:
                raise ValueError
            return values.reshape(self.shape)
        except ValueError:
            raise ValueError(
                f"the tensor {self.name!r} has {values.size} values, which are none of the shape {list(self.shape)}"
            ) from None

    def tensor(self) -> Tensor:
        """Return the tensor of a request.

        Raises:
            ValueError: See `array`; or it was left out.
        """
        if self.raw is None:
            raise ValueError(
                f"the tensor {self.name!r} is an image that was left out of the record"
            )
        array = self.array()
        if self.datatype != "BYTES":
            return Tensor(self.name, self.datatype, self.shape, array.copy())  # a handler may write
        elements: list[Element] = array.ravel().tolist()
        return Tensor(self.name, self.datatype, self.shape, elements)


class Failure(msgspec.Struct, frozen=True):
    """The error that was answered."""

    status: int
    message: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its answer.

    Attributes:
        time: When the request came, in seconds since 1970.
        duration_ms: Until its answer was there.
        outputs: The answer's; None where there is a failure.
        wanted: The outputs that the client asked for, with their parameters; empty for all.
        chunks: The intermediate answers of a request that streams.
        streamed: Whether its client asked for a stream.
    """

    time: float
    id: str
    model: str
    version: str
    duration_ms: float
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...] | None = None
    failure: Failure | None = None
    parameters: dict[str, bool | int | float | str] = {}
    wanted: dict[str, dict[str, bool | int | float | str]] = {}
    headers: dict[str, str] = {}
    answer_parameters: dict[str, bool | int | float | str] = {}
    chunks: tuple[tuple[RecordedTensor, ...], ...] = ()
    streamed: bool = False

    def line(self) -> bytes:
        """Return the record as a line."""
        return msgspec.json.encode(self) + b"\n"


def recorded(tensor: Tensor) -> RecordedTensor:
    """Return a copy of a tensor, which its owner may change from now on."""
    data = tensor.data
    raw = np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else _joined(data)
    return RecordedTensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw)


def _joined(elements: Sequence[Element]) -> bytes:
    parts: list[Element] = []
    for element in elements:
        parts += [_LENGTH.pack(len(element)), element]
    return b"".join(parts)

from typing import Any, final

import numpy.typing as npt

BOOL_CONTENTS: int
INT_CONTENTS: int
INT64_CONTENTS: int
UINT_CONTENTS: int
UINT64_CONTENTS: int
FP32_CONTENTS: int
FP64_CONTENTS: int
BYTES_CONTENTS: int
VIEW_BYTES: int

class MessageError(ValueError): ...

class MessageLimit(MessageError):
    limit: str

class ValueOutOfRange(MessageError):
    index: int
    value: int

@final
class Input:
    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def parameters(self) -> dict[str, bool | int | float | str | None]: ...
    @property
    def fields(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def has_contents(self) -> bool: ...
    @property
    def packed(self) -> tuple[int, int]: ...

@final
class Output:
    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> dict[str, bool | int | float | str | None]: ...

@final
class Request:
    @property
    def message(self) -> bytes | memoryview: ...
    @property
    def model_name(self) -> str: ...
    @property
    def model_version(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def parameters(self) -> dict[str, bool | int | float | str | None]: ...
    @property
    def inputs(self) -> list[Input]: ...
    @property
    def outputs(self) -> list[Output]: ...
    @property
    def raw(self) -> list[tuple[int, int]]: ...
    def decode(self, entry: Input, out: npt.NDArray[Any] | bytearray | memoryview) -> None: ...
    def elements(self, entry: Input, views: bool = False) -> list[bytes | memoryview]: ...

def contents_field(datatype: str) -> int: ...
def scan(
    message: bytes | memoryview,
    *,
    inputs: int = ...,
    rank: int = ...,
    parameters: int = ...,
    text: int = ...,
) -> Request | None: ...

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

class BodyError(ValueError):
    code: str
    offset: int
    place: str
    index: int
    owner: str
    field: str
    wanted: str
    name: str
    expected: int
    received: int

class Bounds:
    def __init__(
        self,
        depth: int = ...,
        rank: int = ...,
        dimension: int = ...,
        inputs: int = ...,
        parameters: int = ...,
        size_list: int = ...,
    ) -> None: ...

class Input:
    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    parameters: dict[str, bool | int | float | str]
    data: tuple[int, int] | None
    offset: int
    length: int
    sizes: tuple[int, ...] | None
    shared_memory: tuple[str, int, int] | None
    array: npt.NDArray[Any] | None

class Output:
    name: str
    binary: bool | None
    classification: int
    parameters: dict[str, bool | int | float | str]
    shared_memory: tuple[str, int, int] | None

class Header:
    id: str
    parameters: dict[str, bool | int | float | str]
    binary_output: bool | None
    mark_final: bool
    timeout_us: int
    priority: int
    json_length: int
    inputs: list[Input]
    outputs: list[Output]

def digits(text: str, limit: int) -> int: ...
def view(
    buffer: Buffer,
    offset: int,
    datatype: str,
    shape: tuple[int, ...],
    name: str = ...,
    index: int = ...,
) -> npt.NDArray[np.generic]: ...
def read(buffer: Buffer, json_length: int, bounds: Bounds | None = None) -> Header: ...

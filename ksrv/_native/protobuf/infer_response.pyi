from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

MAX_MESSAGE: int

def render(
    model_name: str,
    model_version: str,
    id: str,
    parameters: Mapping[str, bool | int | float | str],
    outputs: Iterable[
        tuple[
            str,
            str,
            Sequence[int],
            Mapping[str, bool | int | float | str],
            npt.NDArray[Any] | list[bytes | memoryview],
        ]
    ],
    *,
    stream: bool = False,
    apart: bool = False,
) -> Any: ...

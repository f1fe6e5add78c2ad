from collections.abc import Sequence
from typing import Any

from ksrv._native.tensor.tensor import Tensor

class BatchInputs:
    tensors: dict[str, Tensor]
    rows: int
    requests: Sequence[Any]
    explain: bool
    emit: Any
    handles: list[Any] | None
    beside_others: bool
    inherited: Any
    def __init__(
        self,
        tensors: dict[str, Tensor],
        rows: int,
        requests: Sequence[Any],
        explain: bool = False,
        emit: Any = None,
    ) -> None: ...

class BatchOutputs:
    tensors: list[Tensor]
    failures: dict[int, Any]
    timings: dict[str, int]
    headers: dict[int, dict[str, str]]
    parameters: dict[int, dict[str, Any]]
    exclusive: bool
    only: frozenset[int] | None
    facts: dict[int, Any]
    parts: dict[int, tuple[int, int]] | None
    def __init__(
        self,
        tensors: list[Tensor],
        failures: dict[int, Any] | None = None,
        timings: dict[str, int] | None = None,
        headers: dict[int, dict[str, str]] | None = None,
        parameters: dict[int, dict[str, Any]] | None = None,
        exclusive: bool = False,
        only: frozenset[int] | None = None,
        facts: dict[int, Any] | None = None,
        parts: dict[int, tuple[int, int]] | None = None,
    ) -> None: ...

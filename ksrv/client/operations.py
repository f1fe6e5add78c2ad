"""The calls of the protocol, apart from the transport that carries them and the client that waits for them.

A public method is a generator that yields the operations it needs and is sent their answers; the
blocking and the asyncio client drive the same generators.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ksrv.client.errors import ClientError, InvalidRequest, NotFound
from ksrv.client.tensors import Array, Declared, Tensor, declared_inputs, encode

LONGEST_TIMEOUT_S = 1_000_000.0
"""Longer timeouts are cut to this length: sockets and gRPC refuse them, or take them for times that have passed."""

Document: TypeAlias = Any
"""An answer as JSON would hold it."""

Parameters: TypeAlias = Mapping[str, bool | int | float | str]
Outputs: TypeAlias = Sequence[str] | Mapping[str, Parameters]
Progress: TypeAlias = Callable[[int, int], object]
"""Takes how many bytes of a request are sent, and how many it has."""


def deadline_after(seconds: float) -> float:
    """Return when a timeout passes, in seconds of the monotonic clock.

    Args:
        seconds: The timeout.

    Raises:
        ValueError: It is no number.
    """
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds, got nan")
    return time.monotonic() + min(seconds, LONGEST_TIMEOUT_S)


def check_token(token: str | None) -> None:
    """Refuse a bearer token that does not fit into a header.

    Args:
        token: The token, or None without one.

    Raises:
        ValueError: It cannot be sent.
    """
    if token is not None and not (token.isprintable() and token.isascii()):
        raise ValueError("a token consists of printable ASCII characters")


@dataclass(frozen=True)
class Operation:
    """One call.

    Attributes:
        name: gRPC's name of it, such as "ModelInfer".
        model: The model's name, if the call is about a model.
        version: The model's version, or "" for the default.
        inputs: Of an inference.
        outputs: The outputs wanted, with the parameters of each; empty for all.
        parameters: Of the request.
        id: Of the request, for logs.
        progress: Called over REST with the bytes sent so far, or None.
    """

    name: str
    model: str = ""
    version: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[tuple[str, Parameters], ...] = ()
    parameters: Parameters | None = None
    id: str = ""
    progress: Progress | None = None

    @property
    def asks_readiness(self) -> bool:
        """Whether "not ready" is an answer to it rather than an error."""
        return self.name in ("ServerReady", "ServerLive", "ModelReady")


class InferResult(dict[str, Array]):
    """The outputs of an inference by name.

    Attributes:
        model_name: The model that answered.
        model_version: Its version, "" for an unversioned model.
        id: The request's id, as it was sent.
        parameters: The answer's parameters.
        timing: Milliseconds of each stage, if the server reports them (`Server-Timing`).
    """

    def __init__(self, outputs: Mapping[str, Array], document: Mapping[str, Any]) -> None:
        super().__init__(outputs)
        self.model_name = str(document.get("model_name", ""))
        self.model_version = str(document.get("model_version", ""))
        self.id = str(document.get("id", ""))
        self.parameters: dict[str, Any] = dict(document.get("parameters") or {})
        self.timing: dict[str, float] = dict(document.get("timing") or {})

    @property
    def text(self) -> str:
        """The text of the only BYTES output, its rows joined.

        Raises:
            ClientError: The answer has no BYTES output, or several.
        """
        texts = [value for value in self.values() if value.dtype == object]
        if len(texts) != 1:
            raise ClientError(
                f"the model {self.model_name} answers {len(texts)} BYTES outputs of {len(self)}; "
                f"expected one, whose text this is"
            )
        return b"".join(texts[0].reshape(-1)).decode("utf-8", "replace")


Steps: TypeAlias = Generator[Operation, Document, Any]


class Operations:
    """The operations of both clients, as generators.

    The inputs that models declare are asked for once and kept until a request is refused or the
    model is loaded anew through this client.
    """

    def __init__(self) -> None:
        self._declared: dict[tuple[str, str], dict[str, Declared]] = {}
        self._lock = threading.Lock()

    def infer(
        self,
        model: str,
        inputs: Any,
        version: str,
        outputs: Outputs | None,
        parameters: Parameters | None,
        request_id: str,
        progress: Progress | None = None,
    ) -> Steps:
        """Ask a model."""
        operation = yield from self.inference(
            "ModelInfer", model, inputs, version, outputs, parameters, request_id, progress
        )
        try:
            return (yield operation)
        except (InvalidRequest, NotFound):
            self.forget(model)
            raise

    def inference(
        self,
        name: str,
        model: str,
        inputs: Any,
        version: str,
        outputs: Outputs | None,
        parameters: Parameters | None,
        request_id: str,
        progress: Progress | None = None,
    ) -> Generator[Operation, Document, Operation]:
        """Return an inference: "ModelInfer", or "ModelStreamInfer" for an answer in parts."""
        declared = yield from self._inputs_of(model, version)
        tensors = [encode(name, value, declared.get(name)) for name, value in _named(model, inputs, declared)]  # fmt: skip
        wanted = outputs or ()
        entries = wanted.items() if isinstance(wanted, Mapping) else [(name, {}) for name in wanted]
        return Operation(
            name, model, version, tuple(tensors), tuple(entries), parameters, request_id, progress
        )

    def _inputs_of(
        self, model: str, version: str
    ) -> Generator[Operation, Document, dict[str, Declared]]:
        with self._lock:
            known = self._declared.get((model, version))
        if known is None:
            known = declared_inputs((yield Operation("ModelMetadata", model, version)))
            with self._lock:
                self._declared[model, version] = known
        return known

    def forget(self, model: str) -> None:
        """Ask for the declared inputs of a model again before its next inference."""
        with self._lock:
            for key in [key for key in self._declared if key[0] == model]:
                del self._declared[key]

    def metadata(self, model: str, version: str) -> Steps:
        """Ask what the server or a model is."""
        if not model:
            return (yield Operation("ServerMetadata"))
        return (yield Operation("ModelMetadata", model, version))

    def ready(self, model: str, version: str) -> Steps:
        """Ask whether the server or a model is ready."""
        if not model:
            return (yield Operation("ServerReady"))["ready"]
        return (yield Operation("ModelReady", model, version))["ready"]

    def live(self) -> Steps:
        """Ask whether the server is live."""
        return (yield Operation("ServerLive"))["live"]

    def index(self) -> Steps:
        """Ask for the models of the repository."""
        found = yield Operation("RepositoryIndex")
        return [{"version": "", **entry} for entry in found]

    def statistics(self, model: str, version: str) -> Steps:
        """Ask for what models have done."""
        return (yield Operation("ModelStatistics", model, version))["model_stats"]

    def load(self, model: str) -> Steps:
        """Load a model, or load it anew."""
        self.forget(model)
        yield Operation("RepositoryModelLoad", model)

    def unload(self, model: str) -> Steps:
        """Take a model out of service."""
        self.forget(model)
        yield Operation("RepositoryModelUnload", model)


def _named(model: str, inputs: Any, declared: Mapping[str, Declared]) -> list[tuple[str, Any]]:
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    if len(declared) != 1:
        names = ", ".join(declared) or "none by name"
        raise ValueError(
            f"the model {model} declares {len(declared)} inputs ({names}); expected a mapping of "
            f"input names to values"
        )
    return [(next(iter(declared)), inputs)]


def infer_document(operation: Operation) -> dict[str, Any]:
    """Return the JSON header of an inference.

    Args:
        operation: The inference.
    """
    document: dict[str, Any] = {
        "inputs": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "parameters": {"binary_data_size": tensor.nbytes},
            }
            for tensor in operation.inputs
        ]
    }
    if operation.id:
        document["id"] = operation.id
    if operation.outputs:
        document["outputs"] = [
            {
                "name": name,
                "parameters": {"binary_data": operation.name == "ModelInfer", **parameters},
            }
            for name, parameters in operation.outputs
        ]
    binary = {} if operation.name == "ModelStreamInfer" else {"binary_data_output": True}
    if parameters := {**binary, **(operation.parameters or {})}:
        document["parameters"] = parameters
    return document


def compact(document: Any) -> bytes:
    """Return a document as JSON without spaces.

    Args:
        document: The document.
    """
    return json.dumps(document, separators=(",", ":")).encode()

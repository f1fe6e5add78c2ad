"""The calls of the protocol, independent of the transport (REST or gRPC) and of the client (blocking or asyncio)."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ksrv.client.errors import ClientError
from ksrv.client.tensors import Array, Declared, Tensor, encode

LONGEST_TIMEOUT_S = 1_000_000.0
"""Longer timeouts are shortened to this: sockets and gRPC refuse them, or wrap around."""

Document: TypeAlias = Any
"""An answer as a JSON value. For an inference, an `InferResult`."""

Parameters: TypeAlias = Mapping[str, bool | int | float | str]
Outputs: TypeAlias = Sequence[str] | Mapping[str, Parameters]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with how many bytes of a request are sent, and how many it has."""


def deadline_after(seconds: float) -> float:
    """Return when a timeout passes, in seconds of the monotonic clock.

    Raises:
        ValueError: The timeout is NaN.
    """
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds, got nan")
    return time.monotonic() + min(seconds, LONGEST_TIMEOUT_S)


def check_token(token: str | None) -> None:
    """Refuse a bearer token that does not fit into a header.

    Raises:
        ValueError: The token has characters that a header cannot have.
    """
    if token is not None and not (token.isprintable() and token.isascii()):
        raise ValueError("a token consists of printable ASCII characters")


@dataclass(frozen=True)
class Operation:
    """One call.

    Attributes:
        name: The name of the gRPC method, such as "ModelInfer"; also used over REST.
        model: The model's name, if the call is about a model.
        version: The model's version, or "" for the default.
        inputs: The inputs of an inference.
        outputs: The wanted outputs, with the parameters of each; empty for all.
        parameters: The parameters of an inference.
        id: The id of an inference, for logs.
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
        """Whether the operation asks about readiness, so that "not ready" is an answer and not an error."""
        return self.name in ("ServerReady", "ServerLive", "ModelReady")


class InferResult(dict[str, Array]):
    """The outputs of an inference by name.

    Attributes:
        model_name: The model that answered.
        model_version: Its version, "" for an unversioned model.
        id: The request's id, as it was sent.
        parameters: The answer's parameters.
        content_types: The content types of the outputs that are files, by name.
        timing: Milliseconds of each stage, if the server reports them (`Server-Timing`).
    """

    def __init__(self, outputs: Mapping[str, Array], document: Mapping[str, Any]) -> None:
        super().__init__(outputs)
        self.model_name = str(document.get("model_name", ""))
        self.model_version = str(document.get("model_version", ""))
        self.id = str(document.get("id", ""))
        self.parameters: dict[str, Any] = dict(document.get("parameters") or {})
        self.content_types: dict[str, str] = {
            entry["name"]: entry["parameters"]["media_type"]
            for entry in document.get("outputs", ())
            if "media_type" in (entry.get("parameters") or {})
        }
        self.timing: dict[str, float] = dict(document.get("timing") or {})

    def __missing__(self, name: str) -> Array:
        raise KeyError(f"the answer has no output {name!r}; its outputs are {', '.join(self)}")

    @property
    def file(self) -> bytes:
        """The bytes of the only file, such as a sound or a picture.

        Raises:
            ClientError: The answer has no file, or several.
        """
        found = [element for name in self.content_types for element in self[name].reshape(-1)]
        if len(found) != 1:
            raise ClientError(
                f"the model {self.model_name} answers {len(found)} files; .file is for answers with one file"
            )
        return bytes(found[0])

    @property
    def text(self) -> str:
        """The text of the only BYTES output, with its rows joined.

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


def inference(
    name: str,
    model: str,
    inputs: Any,
    version: str,
    declared: Mapping[str, Declared],
    outputs: Outputs | None,
    parameters: Parameters | None,
    request_id: str,
    progress: Progress | None = None,
) -> Operation:
    """Return the operation of an inference.

    Args:
        name: "ModelInfer", or "ModelStreamInfer" for an answer in parts.
        inputs: See `AsyncClient.infer`.
        declared: The model's inputs.

    Raises:
        ValueError: An input's value cannot be sent.
        OSError: An input's file cannot be read.
    """
    if not isinstance(inputs, Mapping):
        if len(declared) != 1:
            names = ", ".join(declared) or "none by name"
            raise ValueError(
                f"the model {model} declares {len(declared)} inputs ({names}); expected a mapping of "
                f"input names to values"
            )
        inputs = {next(iter(declared)): inputs}
    tensors = [encode(key, value, declared.get(key)) for key, value in inputs.items()]
    wanted = outputs or ()
    entries = wanted.items() if isinstance(wanted, Mapping) else [(key, {}) for key in wanted]
    return Operation(
        name, model, version, tuple(tensors), tuple(entries), parameters, request_id, progress
    )


def infer_document(operation: Operation) -> dict[str, Any]:
    """Return the JSON header of an inference."""
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
    """Return a document as JSON without spaces."""
    return json.dumps(document, separators=(",", ":")).encode()

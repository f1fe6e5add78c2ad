"""The extension model repository: list, load and unload models."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import InvalidRequest, KsrvError, NotImplementedByKsrv, quote
from ksrv.protocol.documents import read_document
from ksrv.protocol.metadata import to_message
from ksrv.protocol.openapi import Operation
from ksrv.protocol.protobuf import message_class
from ksrv.server.grpc.calls import Behavior
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import Needs

if TYPE_CHECKING:
    import falcon

    from ksrv.engine.engine import Engine

CONFIG = "config"
_LONG_WORD = re.compile(r"(\S{64})\S+")
DEEPEST = 32
"""The most levels of a configuration. Triton's message has fewer, so deeper JSON has unknown keys."""


class IndexRequest(msgspec.Struct):
    """The body of a call for the index: `ready` lists only models that are ready."""

    ready: bool = False


class LoadRequest(msgspec.Struct):
    """The body of a load or unload call; `read_config` and `_check_parameters` check the parameters."""

    parameters: dict[str, Any] | None = None


INDEX = Operation(
    "Every model and version with its state", "repository", list[dict[str, str]], IndexRequest
)
LOAD = Operation("Load a model", "repository", body=LoadRequest)
UNLOAD = Operation("Unload a model", "repository", body=LoadRequest)


class ModelRepository:
    """The calls of the extension, over REST and gRPC."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def index(self, *, ready_only: bool) -> list[dict[str, str]]:
        """Return every model and version with its state."""
        return [
            {"name": state.name, "state": state.state, "reason": state.reason}
            | ({"version": state.version} if state.version else {})
            for state in self._engine.index(ready_only=ready_only)
        ]

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model of the repository, also if it is loaded already; return when the model is ready.

        Raises:
            KsrvError: A parameter is wrong, or the model cannot be loaded.
        """
        with _failed_load_texts(name):
            self._engine.load(name, read_config(parameters))

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model.

        Raises:
            KsrvError: A parameter is wrong, or the model is unknown.
        """
        _check_parameters(parameters)
        self._engine.unload(name)

    def add_routes(self, app: "falcon.App[Any, Any]", read: DocumentReader) -> None:
        """Add the REST routes to an app."""

        def index(document: Any) -> Any:
            return self.index(ready_only=read_document(document, IndexRequest).ready)

        def load(document: Any, name: str) -> Any:
            self.load(name, read_document(document, LoadRequest).parameters or {})
            return {"name": name, "load": True}

        def unload(document: Any, name: str) -> Any:
            self.unload(name, read_document(document, LoadRequest).parameters or {})
            return {"name": name, "unload": True}

        for path, post, needs, operation in (
            ("index", index, Needs.TOKEN, INDEX),
            ("models/{name}/load", load, Needs.CONTROL, LOAD),
            ("models/{name}/unload", unload, Needs.CONTROL, UNLOAD),
        ):
            resource = JsonResource(None, post, read)
            app.add_route(
                f"/v2/repository/{path}", resource, needs=needs, described={"post": operation}
            )

    def calls(self) -> dict[str, Behavior]:
        """Return the gRPC calls that change models, by name."""
        return {"RepositoryModelLoad": self._load_call, "RepositoryModelUnload": self._unload_call}

    def index_call(self, request: Any, call: Call) -> Any:
        """Answer RepositoryIndex."""
        _check_repository(request.repository_name)
        models = self.index(ready_only=request.ready)
        return to_message("inference.RepositoryIndexResponse", {"models": models})

    def _load_call(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        self.load(request.model_name, _values(request.parameters))
        return message_class("inference.RepositoryModelLoadResponse")()

    def _unload_call(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        self.unload(request.model_name, _values(request.parameters))
        return message_class("inference.RepositoryModelUnloadResponse")()


def _check_repository(name: str) -> None:
    if name:
        raise NotImplementedByKsrv(
            f"repository {quote(name)}: repositories have no names here; leave repository_name empty"
        )


def _values(parameters: Any) -> dict[str, Any]:
    """Return the values of the parameters of a gRPC call; None for a parameter without a value."""
    return {
        name: getattr(value, choice) if (choice := value.WhichOneof("parameter_choice")) else None
        for name, value in parameters.items()
    }


def _check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse parameters that ksrv does not know; it accepts and ignores `unload_dependents`.

    Raises:
        InvalidRequest: A parameter is unknown, or `unload_dependents` is not a boolean.
    """
    for name, value in given.items():
        if name != "unload_dependents":
            raise InvalidRequest(
                f"parameter {quote(name)} is not accepted: a call loads the files in the repository"
            )
        if not isinstance(value, bool):
            raise InvalidRequest("parameter 'unload_dependents' must be true or false")


def read_config(given: Mapping[str, Any]) -> str | None:
    """Return the configuration in the parameters of a load call.

    Returns:
        The text of a config.pbtxt, or None if the call has none.

    Raises:
        InvalidRequest: Another parameter is given, or `config` is not the JSON of a configuration.
    """
    _check_parameters({name: value for name, value in given.items() if name != CONFIG})
    if CONFIG not in given:
        return None
    try:
        return _text_format(given[CONFIG])
    except (TypeError, ValueError, RecursionError) as error:
        fault = str(error).partition("\n")[0]
        raise InvalidRequest(
            f"parameter 'config' is not the JSON of a model configuration of Triton's: {fault}"
        ) from None


def _text_format(config: object) -> str:
    from google.protobuf import json_format, text_format

    if not isinstance(config, str):
        raise TypeError(f"expected a string with JSON, found {quote(config)}")
    document = orjson.loads(config)
    if not isinstance(document, dict):
        raise TypeError("expected a JSON object")
    message = message_class("inference.ModelConfig")()
    try:
        json_format.ParseDict(document, message, max_recursion_depth=DEEPEST)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from None
    return text_format.MessageToString(message, as_utf8=True)


@contextmanager
def _failed_load_texts(name: str) -> Iterator[None]:
    """Begin errors with "failed to load" and the model, because Triton's clients look for these words."""
    try:
        yield
    except KsrvError as error:
        # The message may quote texts of the configuration, of any length and with any characters.
        cut = _LONG_WORD.sub(r"\1...", error.message)
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)
        error.message = f"failed to load {quote(name)}, {shown}"
        error.args = (error.message,)
        raise

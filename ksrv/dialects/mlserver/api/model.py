"""`MLModel`, the base class of runtimes, and the functions that runtimes call."""

import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ksrv.dialects.mlserver.api import codecs
from ksrv.dialects.mlserver.api import types as t
from ksrv.dialects.mlserver.api.types import ModelSettings as ModelSettings
from ksrv.handlers.diagnostics.metrics import Metrics

METRICS: contextvars.ContextVar[Metrics] = contextvars.ContextVar("METRICS")
"""The metrics of the model whose code runs. The runner sets it."""

logger = logging.getLogger("mlserver")


def _setting(name: str) -> Any:
    """Return a property that is a field of the settings. `load` may change the inputs and outputs."""
    return property(
        lambda self: getattr(self._settings, name),
        lambda self, value: setattr(self._settings, name, value),
    )


class MLModel:
    """The base of runtimes, which override its coroutines.

    Args:
        settings: The contents of model-settings.json.

    Attributes:
        ready: Whether `load` has returned True.
    """

    def __init__(self, settings: t.ModelSettings) -> None:
        self._settings = settings
        self.ready = False

    async def load(self) -> bool:
        """Load the model; return whether it is ready."""
        return True

    async def predict(self, payload: t.InferenceRequest) -> t.InferenceResponse:
        """Answer a request."""
        raise NotImplementedError(f"{type(self).__name__} has no method predict")

    async def predict_stream(self, payloads: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Answer a request in parts; by default with the answer of `predict`."""
        yield await self.predict(await anext(payloads))

    async def unload(self) -> bool:
        """Free what `load` has made."""
        return True

    name, version = _setting("name"), _setting("version")
    inputs, outputs = _setting("inputs"), _setting("outputs")
    settings = property(lambda self: self._settings)

    def decode(self, request_input: t.RequestInput, default_codec: Any = None) -> Any:
        """Return the value of an input, by its content type or the default codec; else its data."""
        codecs.decode_request_input(request_input, _by_name(self.inputs))
        if default_codec and not codecs.has_decoded(request_input):
            return default_codec.decode_input(request_input)
        return codecs.get_decoded_or_raw(request_input)

    def decode_request(self, inference_request: Any, default_codec: Any = None) -> Any:
        """Return the value of a request, by its content type or the default codec; else the request."""
        codecs.decode_inference_request(inference_request, self.settings, _by_name(self.inputs))
        if default_codec and not codecs.has_decoded(inference_request):
            return default_codec.decode_request(inference_request)
        return codecs.get_decoded_or_raw(inference_request)

    def encode_response(self, payload: Any, default_codec: Any = None) -> Any:
        """Return a value as a response, by its type or the default codec."""
        codec = codecs.find_request_codec(payload=payload) or default_codec or _no_codec(payload)
        return codec.encode_response(self.name, payload, self.version)

    def encode(self, payload: Any, request_output: Any, default_codec: Any = None) -> Any:
        """Return a value as an output, by the content type that is asked for, its type or the default codec."""
        kind = codecs.content_type_of(
            request_output, _by_name(self.outputs).get(request_output.name)
        )
        codec = codecs.find_input_codec(kind, payload) or default_codec or _no_codec(payload)
        return codec.encode_output(name=request_output.name, payload=payload)


def _by_name(tensors: Sequence[t.MetadataTensor] | None) -> dict[str, t.MetadataTensor]:
    return {tensor.name: tensor for tensor in tensors or ()}


def _no_codec(payload: Any) -> Any:
    raise t.CodecNotFound(f"no codec encodes a {type(payload).__name__}; return an array or a list")


async def get_model_uri(settings: t.ModelSettings, wellknown_filenames: Sequence[str] = ()) -> str:
    """Return the path of the model's file; of a folder, the first well-known file in it, else the folder.

    Raises:
        InvalidModelURI: `parameters.uri` is missing, or names nothing.
    """
    given = (settings.parameters and settings.parameters.uri) or ""
    parts = urlparse(given, scheme="file")
    if parts.scheme != "file":
        return given
    path = Path(settings._source or "").parent / parts.path
    if not given or not path.exists():
        raise t.InvalidModelURI(f"parameters.uri of {settings.name} names no file: {given!r}", 422)
    found = (path / name for name in wellknown_filenames if (path / name).is_file())
    return str(next(found, path))


def register(name: str, description: str = "") -> str:
    """Declare a metric, as MLServer asks for; ksrv needs no declaration. Return its name."""
    return name


def log(**metrics: float) -> None:
    """Report values of metrics, by name: each becomes an observation of a histogram on /metrics."""
    for name, value in metrics.items():
        METRICS.get().histogram(name, value)


def custom_handler(rest_path: str, rest_method: str = "POST") -> Callable[[Any], Any]:
    """Return the method unchanged, because ksrv serves no routes of runtimes; the log names it."""
    logger.warning("the route %s of a runtime is not served; call the model's infer", rest_path)
    return lambda method: method

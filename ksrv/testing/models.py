"""A model in this process, for tests: the server's engine with its batching and image rules, without a socket.

    with load(Cats) as model:
        assert model.infer({"image": Path("cat.jpg")})["output"].shape == (1, 1000)

Leaving the context closes the model.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ksrv._native.server.response_stream import ResponseStream
from ksrv.client.tensors import Declared
from ksrv.client.tensors import Tensor as Encoded
from ksrv.client.tensors import encode as encode_input
from ksrv.dialects.registry import forget_modules, formats
from ksrv.engine.composition import ModelCalls
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.engine.instances.inline import InlineExecutor
from ksrv.errors import KsrvError
from ksrv.handlers.declared.settings import settings_of
from ksrv.handlers.handler_context import HandlerContext
from ksrv.handlers.loading import handler_of
from ksrv.handlers.models import array_of
from ksrv.handlers.runner import Runner, make_runner
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.datatypes import DTYPES, widened
from ksrv.model.spec import ModelSpec
from ksrv.repository.entry import ModelEntry
from ksrv.repository.handler_file import model_name
from ksrv.repository.layout import Repository
from ksrv.repository.settings.keys import ModelKeys
from ksrv.repository.settings.values import read_model_keys
from ksrv.repository.yaml_document import Document
from ksrv.request import Array, Element, InferRequest, InferResponse, RequestedOutput, Tensor
from ksrv.server.script import plain_settings
from ksrv.testing.joined_requests import run_joined

Handler = type | Callable[..., Any]


class LoadFailed(AssertionError):
    """The model cannot be loaded. The text is the reason that a server's repository index would give."""


class Answer(dict[str, Array]):
    """The outputs of one request by name; BYTES as object arrays of `bytes`, BF16 as float32.

    Attributes:
        id: The request's id.
        parameters: The parameters that the handler gave the answer.
        headers: The headers that the handler gave the answer.
        timings: Nanoseconds by stage.
    """

    def __init__(self, response: InferResponse) -> None:
        super().__init__({output.name: _decoded(output) for output in response.outputs})
        self.id = response.id
        self.parameters = dict(response.parameters)
        self.headers = dict(response.headers)
        self.timings = dict(response.timings)


class Model:
    """A loaded model; `load` makes it.

    Args:
        entries: The model, and the models that it calls.
        name: The name of the model that gets the requests.
        handlers: The classes and functions of models that have no file, by the models' names.
    """

    def __init__(
        self, entries: Mapping[str, ModelEntry], name: str, handlers: Mapping[str, Handler]
    ) -> None:
        def runner(source: ModelSource, **options: Any) -> Runner:
            if source.name in handlers:
                return _GivenRunner(handlers[source.name], source, **options)
            return make_runner(source, **options)

        def executor(source: ModelSource, instance: int, threads: int) -> InlineExecutor:
            return InlineExecutor(
                source,
                instance=instance,
                threads=threads,
                emit=self.engine.handler_metrics.record,
                submit=ModelCalls(self.engine.submit, source.name),
                make=runner,
            )

        self.name = name
        self._sources = [source for entry in entries.values() for source in entry.versions.values()]
        self.engine = Engine(_Given(entries), EngineSettings(), make_executor=executor)
        forget_modules(self._sources)
        self.engine.start(wait=True)
        try:
            self._version = self.engine.find(name)
        except KsrvError as error:
            self.close()
            raise LoadFailed(error.message) from error

    @property
    def spec(self) -> ModelSpec:
        """The model's inputs and outputs."""
        return self._version.spec

    def infer(
        self,
        inputs: Any,
        *,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
    ) -> Answer:
        """Run a request and return the answer.

        Args:
            inputs: Values by input name, or the value alone for a model with one input: arrays,
                nested lists, and for images and texts bytes, `str`, `pathlib.Path` (whose file is
                read) or lists of them. One row needs no batch dimension.
            outputs: Names of the outputs wanted; by default all.
            parameters: The request's parameters.
            headers: The request's headers.
            id: The request's id.

        Returns:
            The outputs by name.

        Raises:
            KsrvError: A server would answer with an error, with this `http_status` and `message`.
        """
        request = self._request(inputs, outputs, parameters, headers, id)
        return Answer(self.engine.submit(request, caller_blocks=True).wait())

    def explain(self, inputs: Any, **options: Any) -> Answer:
        """Run a request for an explanation and return the answer.

        Args:
            inputs: As for `infer`.
            options: As for `infer`.
        """
        request = self._request(inputs, **options)
        request.explain = True
        return Answer(self.engine.submit(request, caller_blocks=True).wait())

    def infer_many(self, requests: Sequence[Any], **options: Any) -> list[Answer | KsrvError]:
        """Run several requests that arrive together, and are joined to batches by the model's `batching`.

        Args:
            requests: The inputs of each, as for `infer`.
            options: As for `infer`, for every request.

        Returns:
            The answer of each request, or its error.
        """
        made = [self._request(inputs, **options) for inputs in requests]
        return [
            answer if isinstance(answer, KsrvError) else Answer(answer)
            for answer in run_joined(self._version, made)
        ]

    def stream(self, inputs: Any, **options: Any) -> Iterator[Answer]:
        """Run a request that the model answers in parts, and yield each part when it is made.

        Args:
            inputs: As for `infer`.
            options: As for `infer`.
        """
        request = self._request(inputs, **options)
        answers = request.stream = ResponseStream()
        handle = self.engine.submit(request)
        handle.add_done_callback(lambda _: answers.end())
        sent = False
        try:
            while (answer := answers.take()) is not None:
                sent = True
                yield Answer(answer)
            last = handle.wait()
            if last.outputs or not sent:  # the last response of a generator is empty
                yield Answer(last)
        finally:
            handle.cancel()
            answers.give_up()

    def close(self) -> None:
        """Let the handler close, and free the model."""
        self.engine.close(timeout=30.0)
        forget_modules(self._sources)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(
        self,
        inputs: Any,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
    ) -> InferRequest:
        if not isinstance(inputs, Mapping):
            needed = self.spec.required_inputs or self.spec.inputs
            if len(needed) != 1:
                raise ValueError(
                    f"the model {self.name} has {len(self.spec.inputs)} declared inputs; give the "
                    f"values by name"
                )
            inputs = {needed[0].name: inputs}
        return InferRequest(
            self.name,
            self.spec.version,
            id,
            [self._tensor(name, value) for name, value in inputs.items()],
            [RequestedOutput(name) for name in outputs],
            dict(parameters or {}),
            headers={key.lower(): value for key, value in (headers or {}).items()},
        )

    def _tensor(self, name: str, value: Any) -> Tensor:
        spec = self.spec.input(name)
        declared = None
        if spec is not None:
            declared = Declared(name, spec.datatype, tuple(spec.wire_shape))
        return _as_request_tensor(encode_input(name, value, declared))


def load(
    handler: Handler | str | Path,
    *,
    model: str | None = None,
    name: str | None = None,
    models: Sequence[Handler | str | Path] = (),
    **settings: Any,
) -> Model:
    """Load a model in this process.

    Args:
        handler: A handler class or function, a model's folder or file, or `FILE.py:NAME`.
        model: Which model, if `handler` is a repository of several models; it may call the others.
        name: The model's name, if `handler` is a class or function.
        models: Other models that the handler calls.
        settings: The keys of model.yaml for a class or function, over its `@settings`:
            `parameters={"least": 0.5}`, `batching={"max_batch_size": 4}`, ...

    Returns:
        The model; close it, or use it as a context.

    Raises:
        LoadFailed: It cannot be loaded.
        ValueError: The path has several models, or no model with the given name.
        ConfigError: The settings are not valid.
        RepositoryError: A path holds no model.
    """
    entries: dict[str, ModelEntry] = {}
    handlers: dict[str, Handler] = {}
    asked = ""
    for index, given in enumerate((handler, *models)):
        first = index == 0
        if isinstance(given, str | Path):
            if first and (settings or name):
                raise ValueError(
                    f"{given}: the settings of a path are in its files; "
                    f"{next(iter(settings), 'name')} is for classes and functions"
                )
            found = _entries_of(Path(given), alone=not models)
            asked = asked or _choice(Path(given), found, model)
        else:
            source = _source_of(given, name if first else None, settings if first else {})
            found = {source.name: ModelEntry(source.name, {"": source})}
            handlers[source.name] = given
            asked = asked or source.name
        entries = found | entries
    return Model(entries, asked, handlers)


def _choice(path: Path, found: Mapping[str, ModelEntry], model: str | None) -> str:
    names = ", ".join(sorted(found))
    if model is not None and model not in found:
        raise ValueError(f"{path} holds no model {model}; it holds {names}")
    if model is None and len(found) > 1:
        raise ValueError(f"{path} holds several models ({names}); name one by model=")
    return model or next(iter(found))


def _entries_of(path: Path, *, alone: bool) -> dict[str, ModelEntry]:
    """Return the models of a path, changed so that they run in this process.

    Args:
        alone: Whether no other model is loaded, so that a model with `executor: process` may have this process.
    """
    repository = Repository([path], formats())
    repository.check()
    entries = repository.scan()
    alone = alone and sum(len(entry.versions) for entry in entries.values()) == 1
    for entry in entries.values():
        for version, source in entry.versions.items():
            if source.config is not None:
                config = replace(source.config, executor="inline", instances=1)
                gets_process = alone and source.config.executor == "process"
                entry.versions[version] = replace(source, config=config, alone=gets_process)
    return entries


class _GivenRunner(Runner):
    """Runs a handler that was given as a class or function, not as a file."""

    def __init__(self, handler: Handler, source: ModelSource, **options: Any) -> None:
        super().__init__(source, **options)
        self._given = handler

    def _make_handler(self, config: ModelConfig, context: HandlerContext) -> Any:
        return handler_of(self._given, self.source.name)


class _Given(Repository):
    """A repository of given entries, without a folder."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        super().__init__([])
        self._entries = dict(entries)

    def scan(self) -> dict[str, ModelEntry]:
        return self._entries


def _source_of(handler: Handler, name: str | None, settings: Mapping[str, Any]) -> ModelSource:
    module = sys.modules.get(getattr(handler, "__module__", ""), None)
    file = Path(getattr(module, "__file__", None) or "handler.py").absolute()
    keys = plain_settings({**settings_of(handler), **settings})
    given = getattr(handler, "__name__", "")
    served_as = name or model_name(file, given if given.isidentifier() else "")
    # The name of a handler is required. This name is never looked up, because `_GivenRunner` makes the handler.
    keys |= {"handler": "ksrv.testing:load", "executor": "inline", "instances": 1}
    document = Document.of(file, keys, {})
    config = read_model_keys(document, document.convert(ModelKeys, keys), file.parent)
    return ModelSource(
        name=served_as, version="", folder=file.parent, root=file.parent, config=config
    )


def _as_request_tensor(encoded: Encoded) -> Tensor:
    """Return the tensor that a server reads from an encoded input."""
    if encoded.datatype == "BYTES":
        # Each element is two blocks: the length, and the bytes.
        elements: list[Element] = [bytes(block) for block in encoded.blocks[1::2]]
        return Tensor(encoded.name, "BYTES", encoded.shape, elements)
    dtype = DTYPES[encoded.datatype]
    joined = bytearray().join(encoded.blocks)
    array = np.frombuffer(joined, dtype).reshape(encoded.shape)
    return Tensor(encoded.name, encoded.datatype, encoded.shape, array)


def _decoded(tensor: Tensor) -> Array:
    return widened(array_of(tensor), tensor.datatype)

"""Envelopes: `ts.torch_handler.request_envelope`.

An envelope wraps a handler's entry point: it unpacks the bodies of a batch, calls the handler with their contents, and
packs the items that the handler returns. TorchServe's `kserve` and `kservev2` envelopes read only the first request of
a batch. These read every request, call the handler once with the contents of all of them, and answer each request.
"""

import json
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.dialects.torchserve.api.answers import checked_items
from ksrv.dialects.torchserve.api.classes import list_classes_from_module
from ksrv.dialects.torchserve.base64_text import without_base64
from ksrv.dialects.torchserve.calls import KSERVE_V2
from ksrv.errors import InvalidRequest
from ksrv.model.datatypes import NAME_BY_DTYPE

HandleFunction = Callable[[Any, Any], Any]


class BaseEnvelope(ABC):
    """`ts.torch_handler.request_envelope.base.BaseEnvelope`."""

    _inputs: Any = None

    def __init__(self, handle_fn: HandleFunction) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        self.context = context
        if not data:  # the call that initializes a module-level function
            return self._handle_fn(data, context)
        inputs = self.parse_input(data)
        results = self._handle_fn(inputs, context)
        return self.format_output(results)

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Return the handler's data for these rows."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Return one answer for each request."""


def _value(row: Any) -> Any:
    """Return the body of a row's request, which TorchServe has under `data` or `body`."""
    value = row.get("data")
    return row.get("body") if value is None else value


def _document(row: Any) -> Any:
    """Return the body of a row's request, parsed if it is still bytes."""
    body = _value(row)
    return json.loads(body) if isinstance(body, (bytes, bytearray)) else body


def _by_row(data: Any, read: Callable[[Any], list[Any]], context: Any) -> list[list[Any]]:
    """Return the instances of each row; a row whose instances cannot be read fails alone.

    Args:
        read: Returns the instances of a row.
        context: The handler's context, on which failed rows are recorded.

    Raises:
        InvalidRequest: No row can be read, or the context has no place to record a failed row.
    """
    found: list[list[Any]] = []
    failures: dict[int, InvalidRequest] = {}
    for index, row in enumerate(data):
        try:
            found.append(read(row))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            failures[index] = InvalidRequest(
                f'the body is not a JSON object with readable "instances": {type(error).__name__}: {error}'
            )
            found.append([])
    processors = getattr(context, "request_processor", ())
    if failures and (len(failures) == len(found) or len(processors) != len(found)):
        raise next(iter(failures.values()))
    for index, failure in failures.items():
        processors[index].failure = failure
    return found


def _checked_instances(document: Any) -> list[Any]:
    instances = document["instances"]
    if not isinstance(instances, list | tuple):
        raise TypeError(f"expected an array, found {type(instances).__name__}")
    return list(instances)


class BodyEnvelope(BaseEnvelope):
    """Each row becomes its `data` or `body` value."""

    def parse_input(self, data: Any) -> Any:
        return [_value(row) for row in data]

    def format_output(self, data: Any) -> Any:
        return data


class _InstancesEnvelope(BaseEnvelope):
    """Takes `{"instances": [...]}`, and hands the instances of all requests to the handler together."""

    def parse_input(self, data: Any) -> Any:
        by_row = _by_row(data, self._instances, self.context)
        self._lengths = [len(instances) for instances in by_row]
        return [instance for instances in by_row for instance in instances]

    @abstractmethod
    def _instances(self, row: Any) -> list[Any]:
        """Return the instances of one request."""

    def _split(self, data: Any) -> Iterator[list[Any]]:
        """Yield the items of each request."""
        items = iter(checked_items(data, sum(self._lengths)))
        for length in self._lengths:
            yield list(islice(items, length))


class JSONEnvelope(_InstancesEnvelope):
    """`{"instances": [...]}` in, `{"predictions": [...]}` out, the instances of all requests joined."""

    def _instances(self, row: Any) -> list[Any]:
        value = _value(row)
        instances = _checked_instances(row if value is None else value)
        # As in TorchServe, the first instance decides for all.
        if not instances or not isinstance(instances[0], dict):
            return instances
        return [without_base64(instance) for instance in instances]

    def format_output(self, data: Any) -> Any:
        return [json.dumps({"predictions": items}) for items in self._split(data)]


class KServeEnvelope(_InstancesEnvelope):
    """KServe v1: `instances` in, `predictions` or `explanations` out."""

    def _instances(self, row: Any) -> list[Any]:
        return _checked_instances(_document(row))

    def format_output(self, data: Any) -> Any:
        explained = bool(
            getattr(self.context, "request_processor", None)
            and self.context.get_request_header(0, "explain") == "True"
        )
        key = "explanations" if explained else "predictions"
        return [{key: items} for items in self._split(data)]


class KServev2Envelope(BaseEnvelope):
    """KServe v2 in JSON: input objects {name, shape, datatype, data} in, outputs named after them out."""

    def parse_input(self, data: Any) -> Any:
        self._requests: list[tuple[str, list[str]]] = []
        joined: list[Any] = []
        for row in data:
            body = _document(row)
            items = [self._item(item) for item in body["inputs"]]
            self._requests.append((body.get("id") or str(uuid.uuid4()), [i["name"] for i in items]))
            joined.extend(items)
        self.context.input_names = [name for _, names in self._requests for name in names]
        self.context.input_request_id = self._requests[0][0] if self._requests else None
        return joined

    def _item(self, item: dict[str, Any]) -> dict[str, Any]:
        if item["datatype"] == "BYTES":
            return {**item, "data": item["data"][0]}
        return {**item, "data": np.array(item["data"]).reshape(item["shape"]).tolist()}

    def format_output(self, data: Any) -> Any:
        manifest = self.context.manifest["model"]
        items = iter(checked_items(data, sum(len(names) for _, names in self._requests)))
        return [
            {
                "id": request_id,
                "model_name": manifest.get("modelName"),
                "model_version": manifest.get("modelVersion"),
                "outputs": [_output(name, next(items)) for name in names],
            }
            for request_id, names in self._requests
        ]


def _output(name: str, value: Any) -> dict[str, Any]:
    array = np.atleast_1d(np.array(value))
    return {
        "name": name,
        "datatype": NAME_BY_DTYPE.get(array.dtype.newbyteorder("="), "BYTES"),
        "data": array.ravel().tolist(),
        "shape": list(array.shape),
    }


BARE_ENVELOPES = ("body", "json", "kserve")
"""Envelopes that pass bare values to the handler. Over KServe v2 the rows of the tensor are these values already."""

INSTANCE_ENVELOPES = ("json", "kserve")
"""Envelopes that read the `instances` of a JSON document."""

ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KServeEnvelope,
    KSERVE_V2: KServev2Envelope,
}


def find_envelope(name: str, folder: Path) -> type[BaseEnvelope]:
    """Return a built-in envelope, or an envelope that a module of the archive defines.

    Args:
        name: A built-in's name, or a module of the archive with one subclass of `BaseEnvelope`.
        folder: The archive's folder, which is on `sys.path`.

    Raises:
        ValueError: The envelope is unknown.
    """
    if name in ENVELOPES:
        return ENVELOPES[name]
    module_name = name.removesuffix(".py")
    if not (folder / f"{module_name}.py").is_file():
        known = ", ".join(ENVELOPES)
        raise ValueError(f"envelope is one of {known} or a module of the archive, not {name!r}")
    module = import_module(module_name)
    # If torchserve is installed, the class derives from its BaseEnvelope, not from ksrv's.
    installed = sys.modules.get("ts.torch_handler.request_envelope.base")
    base = getattr(installed, "BaseEnvelope", BaseEnvelope)
    classes = list_classes_from_module(module, base)
    if len(classes) != 1:
        raise ValueError(
            f"{module_name}.py must define one subclass of BaseEnvelope, not {classes or 'none'}; take "
            f"the others out"
        )
    return classes[0]

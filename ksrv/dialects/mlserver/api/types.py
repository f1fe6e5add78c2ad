"""The messages, settings and errors that runtimes import from `mlserver`.

Names, fields and defaults are as in MLServer 1.7, because runtimes construct the classes by keyword and dump them.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import BeforeValidator, ConfigDict
from pydantic_core import core_schema

from ksrv._native.tensor.datatype import NAMES

_SET = {"exclude_unset": True, "exclude_none": True}


class BaseModel(pydantic.BaseModel):
    """The base of all messages. Dumps leave out fields that were not set, and fields without a value."""

    model_config = ConfigDict(protected_namespaces=(), use_enum_values=True)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the message as a dictionary; see pydantic."""
        return super().model_dump(**_SET | options)

    def model_dump_json(self, **options: Any) -> str:
        """Return the message as JSON; see pydantic."""
        return super().model_dump_json(**_SET | options)


Datatype = Enum("Datatype", [(name, name) for name in NAMES if name != "BF16"], type=str)  # type: ignore[misc]
"""The datatypes of MLServer, which has no BF16."""


class TensorData(Sequence[Any]):
    """The values of a tensor. An array that arrived becomes a list when a runtime reads the values.

    Attributes:
        array: The array that arrived, or None.
    """

    def __init__(self, root: Any) -> None:
        values = root.values if isinstance(root, TensorData) else root
        self.values: Any = values
        self.array = values if isinstance(values, np.ndarray) else None

    @property
    def root(self) -> Any:
        """The values, as a list if they arrived as an array."""
        return self.values if self.array is None else self.array.reshape(-1).tolist()

    def __getitem__(self, index: Any) -> Any:
        return self.root[index]

    def __len__(self) -> int:
        return len(self.root)

    def __eq__(self, other: object) -> bool:
        return bool(self.root == getattr(other, "root", other))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        shown = core_schema.plain_serializer_function_ser_schema(lambda data: data.root)
        return core_schema.no_info_plain_validator_function(cls, serialization=shown)


class Parameters(BaseModel):
    """Parameters of a request, an input or an output; any further name is allowed."""

    model_config = ConfigDict(extra="allow")
    content_type: str | None = None
    headers: dict[str, Any] | None = None


class MetadataTensor(BaseModel):
    """An input or output in the metadata of a model."""

    name: str
    datatype: Annotated[str, BeforeValidator(lambda value: Datatype(value).value)]
    shape: list[int]
    parameters: Parameters | None = None


class RequestInput(MetadataTensor):
    """An input of a request."""

    data: TensorData


class ResponseOutput(RequestInput):
    """An output of a response."""


class RequestOutput(BaseModel):
    """An output that the client asks for."""

    name: str
    parameters: Parameters | None = None


class InferenceRequest(BaseModel):
    """A request."""

    id: str | None = None
    parameters: Parameters | None = None
    inputs: list[RequestInput]
    outputs: list[RequestOutput] | None = None


class InferenceResponse(BaseModel):
    """A response."""

    model_name: str
    model_version: str | None = None
    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[ResponseOutput]


class ModelParameters(BaseModel):
    """The section `parameters` of a model-settings.json; any further key is allowed."""

    model_config = ConfigDict(extra="allow")
    uri: str | None = None
    version: str | None = None
    content_type: str | None = None
    extra: dict[str, Any] | None = {}


class ModelSettings(BaseModel):
    """A model-settings.json. ksrv gives all keys and their defaults, so only some are declared here."""

    model_config = ConfigDict(extra="allow")
    name: str = ""
    inputs: list[MetadataTensor] = []
    outputs: list[MetadataTensor] = []
    parameters: ModelParameters | None = None
    _source: str | None = None

    version = property(lambda self: self.parameters and self.parameters.version)


class MLServerError(Exception):
    """The base of all errors, with the status of the answer: `MLServerError("no such word", 404)`."""

    def __init__(self, msg: str, status_code: int = 400) -> None:
        super().__init__(msg)
        self.status_code = status_code


class InferenceError(MLServerError):
    """The request cannot be answered."""


class InvalidModelURI(MLServerError):
    """`parameters.uri` is missing, or names nothing."""


class CodecError(MLServerError):
    """A value cannot be decoded or encoded by its content type."""


CodecNotFound = InputsNotFound = OutputNotFound = CodecError

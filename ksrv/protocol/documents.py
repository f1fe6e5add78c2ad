"""The classes of the JSON objects in requests and answers, from which the OpenAPI document gets its schemas.

`read_document` also reads the bodies of control calls (load, unload) into such classes. Infer requests are read by
`rest.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, Required, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from ksrv.errors import InvalidRequest
from ksrv.model.datatypes import DTYPES
from ksrv.request import LARGEST_SEQUENCE_ID, LONGEST_SEQUENCE_ID, Parameter

_T = TypeVar("_T")

Datatype = Annotated[str, Meta(extra_json_schema={"enum": [*DTYPES, "BYTES"]})]
Unsigned = Annotated[int, Meta(ge=0)]


class Error(TypedDict):
    """The answer to a request that failed."""

    error: str


class Models(TypedDict):
    """The names of the models."""

    models: list[str]


class TensorMetadata(TypedDict):
    """An input or output of a model."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """The inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: NotRequired[dict[str, str]]


class Input(TypedDict):
    """An input of a request."""

    name: str
    shape: list[Unsigned]
    datatype: Datatype
    parameters: NotRequired[dict[str, Parameter]]
    data: NotRequired[list[Any]]


class Output(TypedDict):
    """An output that a request asks for."""

    name: str
    parameters: NotRequired[dict[str, Parameter]]


class InferRequest(TypedDict):
    """An infer request."""

    id: NotRequired[str]
    parameters: NotRequired[dict[str, Parameter]]
    inputs: list[Input]
    outputs: NotRequired[list[Output]]


class ResponseOutput(TypedDict):
    """An output of a response."""

    name: str
    shape: list[int]
    datatype: Datatype
    parameters: NotRequired[dict[str, Parameter]]
    data: NotRequired[
        Annotated[
            list[Any],
            Meta(
                description='Texts that are not UTF-8 are {"b64": ...}; "binary_data": "base64" asks for base64.'
            ),
        ]
    ]


class InferResponse(TypedDict):
    """An infer response."""

    model_name: str
    model_version: NotRequired[str]
    id: NotRequired[str]
    parameters: NotRequired[dict[str, Parameter]]
    outputs: list[ResponseOutput]


class SequenceParameters(TypedDict, total=False):
    """The parameters of a request to a model with sequences."""

    sequence_id: Required[
        Annotated[int, Meta(ge=1, extra_json_schema={"maximum": LARGEST_SEQUENCE_ID})]
        | Annotated[str, Meta(min_length=1, max_length=LONGEST_SEQUENCE_ID)]
    ]
    sequence_start: Annotated[bool, Meta(description="Whether a sequence begins.")]
    sequence_end: Annotated[bool, Meta(description="Whether the sequence ends.")]


def read_document(document: Mapping[str, Any], kind: type[_T]) -> _T:
    """Return a JSON object as an object of its class.

    Raises:
        InvalidRequest: A field is missing or has a wrong value.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the JSON of the request: {error}") from None

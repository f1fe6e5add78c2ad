"""The paths of plain JSON, whose bodies the HTTP server reads without the app: `PlainRoute`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol.rest import RenderedBody
from ksrv.request import InferRequest, InferResponse

ReadBody: TypeAlias = tuple[InferRequest, Callable[[InferResponse], RenderedBody]]
"""The request in a body, and the function that renders its answer."""


class PlainRoute(NamedTuple):
    """A path of plain JSON. The HTTP server takes short bodies there, and reads inputs of numbers without Python.

    Attributes:
        rows: The key of the rows in the body, which is an object; "" if the body is an object of the inputs.
        answer: The key of the rows in an answer; "" if the answer is an object of the outputs.
        read: Reads a body for a model, with the headers for the handler.
        serves: Whether a model's requests on this path have this form.
    """

    rows: str
    answer: str
    read: Callable[[memoryview, ModelSpec, Limits, Mapping[str, str]], ReadBody]
    serves: Callable[[ModelSpec], bool]

"""Infer requests whose body is an image, a sound or a form with files, as curl and browsers send them.

    curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' .../infer
    curl -F image=@cat.jpg -F image=@dog.png .../infer

`read_upload` makes the same tensors as a v2 request with these files would: BYTES elements, in the order of the files.
A field for an input of numbers is plain JSON: -F weight=2, -F 'sizes=[1, 2]'. One part of a form may be a v2 request,
of the type application/json, with other inputs, outputs and parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ksrv._native.tensor.bytes_tensor import signature
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.model.sounds import is_sound
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol import plain_json
from ksrv.protocol.accept import JSON_TYPE
from ksrv.protocol.forms.multipart import (
    MULTIPART,
    FormPart,
    header_options,
    media_type,
    read_multipart,
)
from ksrv.request import Element, Tensor

_FILES = ("image/", "audio/")
_FORM, _URLENCODED = "multipart/", "application/x-www-form-urlencoded"
_STARTS = (b"\xff\xd8", b"\x89P")
"""The first two bytes of JPEG and PNG."""
_BASE64_STARTS = ("/9j/", "iVBOR", "R0lGOD", "UklGR", "Qk", "SUkqA", "TU0AK")
"""The base64 of the first bytes of JPEG, PNG, GIF, WebP, BMP and TIFF."""
_HEAD_BYTES = 64
"""The first bytes of a body that are looked at, or shown in an error."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The content of an upload.

    Attributes:
        tensors: The inputs that the files, texts and numbers give.
        document: The v2 request in JSON that a part of the form is, or None.
    """

    tensors: list[Tensor]
    document: memoryview | None = None


def is_upload(content_type: str | None) -> bool:
    """Tell whether a body of this content type is an image or a form, and not JSON.

    Args:
        content_type: The request's `Content-Type`, if there is one.
    """
    return (content_type or "").lower().startswith((*_FILES, _FORM))


def read_upload(
    body: memoryview, content_type: str, spec: ModelSpec, limits: Limits, input_name: str | None
) -> Upload | None:
    """Read a body that is an image or a form.

    Args:
        body: The received bytes.
        content_type: The request's `Content-Type`, or "".
        input_name: The input that an image is for, if the client names it.

    Returns:
        The content of the body; None if the body is neither an image nor a form.

    Raises:
        InvalidRequest: The form is malformed, or it is not clear which input takes an image.
    """
    lowered = content_type.lower()
    if lowered.startswith(_FORM):
        kind = media_type(content_type)
        if kind != MULTIPART:
            raise InvalidRequest(
                f"the body has the content type {quote(kind)}; a form with files has {MULTIPART}"
            )
        boundary = header_options(content_type).get("boundary", "")
        return _form(read_multipart(body, boundary), spec, limits, input_name)
    if lowered.startswith(_URLENCODED):
        _refuse_stripped(body[:_HEAD_BYTES])
    if lowered.startswith(_FILES) or signature(body) is not None:
        name = input_name or file_input(spec)
        return Upload([_tensor(name, [body], spec)])
    return None


def _refuse_stripped(head: memoryview) -> None:
    """Refuse a JPEG or PNG without the NUL bytes that each has at its beginning: curl -d leaves out NUL bytes."""
    if bytes(head[:2]) in _STARTS and 0 not in head:
        raise InvalidRequest(
            "bytes of the picture are missing, as when curl sends a file with -d; send it with "
            "--data-binary @FILE, or as a form: -F image=@FILE"
        )


def file_input(spec: ModelSpec) -> str:
    """Return the name of the input for a file whose input the client does not name.

    Raises:
        InvalidRequest: The model has no such input, or several.
    """
    inputs = spec.required_inputs or spec.inputs
    names = [entry.name for entry in inputs if entry.takes_files]
    names = names or [entry.name for entry in inputs if entry.datatype == "BYTES"]
    names = names or [entry.name for entry in inputs]
    if len(names) == 1:
        return names[0]
    if not names:
        raise InvalidRequest(
            f"the model {spec.name} declares no inputs, so the image needs a name: add ?input=NAME to "
            f"the path, or send it as a form: curl -F NAME=@FILE"
        )
    known = ", ".join(quote(name) for name in names)
    raise InvalidRequest(
        f"the model {spec.name} has the inputs {known}; an image alone needs ?input=NAME behind the "
        f"path, and a form (curl -F NAME=@FILE) holds several inputs"
    )


def _form(
    parts: Sequence[FormPart], spec: ModelSpec, limits: Limits, input_name: str | None
) -> Upload:
    """Return the content of a form. Several parts of one name are the elements, or the rows, of one input."""
    document: memoryview | None = None
    elements: dict[str, list[Element]] = {}
    numbers: dict[str, list[Any]] = {}
    left = plain_json.MOST_BYTES  # bytes of numbers that further parts may have
    for part in parts:
        declared = spec.input(part.name)
        if media_type(part.content_type) == JSON_TYPE and declared is None:
            if document is not None:
                raise InvalidRequest(f"the form has two parts of the type {JSON_TYPE}; one may be")
            document = memoryview(part.value)
            continue
        name = _named(part, spec, input_name)
        if not part.is_file:
            declared = spec.input(name)
            _refuse_text(part, declared)
            if declared and not declared.takes_files and declared.datatype != "BYTES":
                left -= len(part.value)
                numbers.setdefault(name, []).append(_value(part, declared, left))
                continue
        elements.setdefault(name, []).append(part.value)
        if len(elements) > limits.inputs:
            raise InvalidRequest(f"the form exceeds the {show_limit('inputs', limits.inputs)}")
    if not elements and not numbers and document is None:
        raise InvalidRequest("the form has no parts; send files as curl -F NAME=@FILE does")
    tensors = [_tensor(name, values, spec) for name, values in elements.items()]
    for index, (name, values) in enumerate(numbers.items()):
        tensors.append(_numbers(name, values, spec, index, limits))
    return Upload(tensors, document)


def _value(part: FormPart, declared: TensorSpec, left: int) -> Any:
    """Return the number, or the list of numbers, in a field of a form.

    Args:
        left: The bytes of numbers that the form may still have after this field; refused if negative.
    """
    if left < 0:
        raise InvalidRequest(
            f"the fields of a form may have at most {plain_json.MOST_BYTES} bytes of numbers; send more in a v2 request"
        )
    try:
        value = orjson.loads(part.value)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, int | float | list):
        raise InvalidRequest(
            f"the form's field {quote(part.name)} holds {quote(_beginning(part.value))}; the input takes "
            f"{declared.datatype}: expected a number, true, false, or a list of them in JSON"
        )
    return value


def _beginning(value: Element) -> str:
    """Return the first bytes of a value as text, for an error."""
    return bytes(value[:_HEAD_BYTES]).decode("utf-8", "replace")


def _numbers(name: str, values: list[Any], spec: ModelSpec, index: int, limits: Limits) -> Tensor:
    """Return an input of numbers: from the value of one field, or with a row for each of several fields."""
    declared = spec.input(name)
    if declared is None:
        raise InvalidRequest(f"the model {spec.name} has no input {quote(name)}")
    if len(values) > 1:
        return plain_json.read_rows(declared, values, index, limits)
    return plain_json.read_value(declared, values[0], index, limits).tensor


def _named(part: FormPart, spec: ModelSpec, input_name: str | None) -> str:
    """Return the input that a part is for. A file with another name is for the only input that takes images."""
    if not spec.inputs or spec.accepts_any_inputs or spec.input(part.name) is not None:
        return part.name
    images = [entry.name for entry in spec.inputs if entry.takes_files]
    if part.is_file and (input_name or len(images) == 1):
        return input_name or images[0]
    return part.name


def _refuse_text(part: FormPart, declared: TensorSpec | None) -> None:
    """Refuse a text for an input of files. Often it is the name of the file, because the @ of curl is missing."""
    if declared is None or not declared.takes_files:
        return
    may_be_sound = declared.audio is not None and (
        is_sound(part.value) or not bytes(part.value).isascii()
    )
    if not may_be_sound and signature(part.value) is None:
        text = _beginning(part.value)
        what = "a text and no file; curl sends a file whose name has an @ before it: -F NAME=@FILE"
        if text.startswith(("data:", *_BASE64_STARTS)):
            what = (
                "a file in base64; a form carries the bytes of the file: curl -F NAME=@FILE, or formData.append(NAME, blob) "
                "in a browser"
            )
        raise InvalidRequest(f"the form's part {quote(part.name)} is {what}")


def _tensor(name: str, elements: list[Element], spec: ModelSpec) -> Tensor:
    """Return a BYTES tensor with one element for each row, of the rank that the model declares."""
    declared: TensorSpec | None = spec.input(name)
    rank = 1
    if declared is not None and declared.datatype == "BYTES":
        rank = max(len(declared.shape), 1)
    return Tensor(name, "BYTES", (len(elements),) + (1,) * (rank - 1), elements)

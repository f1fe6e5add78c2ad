"""Reads the `data` array of an input in JSON: numbers into an array, strings into BYTES elements (`read_data`).

The native reader of the request has only found where the array begins and ends; this module reads the values. Nesting
does not matter: flat data and nested data in row-major order mean the same, and only the number of values is compared
with the shape.
"""

import re
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import orjson

from ksrv._native.infer.infer_body import Input
from ksrv._native.json import number_array
from ksrv._native.json.base64_text import Base64Error, decode
from ksrv._native.json.number_array import NumbersError
from ksrv.errors import InvalidRequest, quote
from ksrv.model.datatypes import BINARY_ONLY
from ksrv.protocol.error_texts import numbers_fault
from ksrv.protocol.parameters import BASE64
from ksrv.request import Array, Element

CONTENT_TYPE = "content_type"
B64 = "b64"
_NOT_BASE64 = re.compile("[^A-Za-z0-9+/=]")
_DATA_URL = re.compile(r"data:[^,]{0,256},", re.IGNORECASE)


def leaves(document: list[object]) -> Iterator[object]:
    """Yield the values of nested arrays depth first. The native reader has bounded the nesting before."""
    pending = [iter(document)]
    while pending:
        for value in pending[-1]:
            if isinstance(value, list):
                pending.append(iter(value))
                break
            yield value
        else:
            pending.pop()


def from_base64(text: str) -> bytes:
    """Return the bytes of base64 or of a data URL.

    Raises:
        Base64Error: The text is neither.
    """
    code = text
    if text[:5].lower() == "data:":
        head = _DATA_URL.match(text)
        if head is None or not head[0].lower().endswith(";base64,"):
            raise Base64Error("a data URL has the form data:TYPE;base64,TEXT")
        code = text[head.end() :]
    try:
        return decode(code)
    except Base64Error as error:
        if text.startswith(("http://", "https://")):
            fault = "ksrv fetches no URLs: send the bytes of the file in base64"
        else:
            found = _NOT_BASE64.search(code)
            remedy = f"{error}; expected the bytes of the file in base64 with its padding (=)"
            fault = remedy if found is None else _character_fault(found)
        raise Base64Error(fault) from None


def _character_fault(found: re.Match[str]) -> str:
    remedy = "expected the bytes of the file in base64"
    if found[0] in "-_":
        remedy = "this is base64url: write + for each - and / for each _"
    elif found[0].isspace():
        remedy = "leave out line ends and blanks"
    return f"character {found.start()} is {quote(found[0])}; {remedy}"


def elements_in_json(
    elements: Sequence[Element], *, as_base64: bool, are_files: bool = False
) -> list[Any]:
    """Return elements for JSON: texts, or all as `{"b64": ...}` if they are files or any element is not UTF-8.

    Args:
        as_base64: Whether each element is a string in base64 instead.
    """
    if not (as_base64 or are_files):
        with suppress(UnicodeDecodeError):
            return [str(element, "utf-8") for element in elements]
    codes = [b2a_base64(element, newline=False).decode() for element in elements]
    return codes if as_base64 else [{B64: code} for code in codes]


def to_element(value: object, is_base64: bool, subject: str, place: int) -> Element:
    """Return the element for a JSON value.

    Args:
        is_base64: Whether a string is base64, and not a text.
        subject: The input, for the error.
        place: The index of the value in the flat data, for the error.

    Raises:
        InvalidRequest: The value is not an element.
    """
    text = value
    if isinstance(value, dict) and value.keys() == {B64}:
        text, is_base64 = value[B64], True
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{subject}: value {place} of 'data' is not a string; BYTES data in JSON is one string for "
            f'each element, or {{"{B64}": ...}} for bytes in base64'
        )
    if not is_base64:
        return text.encode()
    try:
        return from_base64(text)
    except Base64Error as error:
        raise InvalidRequest(
            f"{subject}: element {place} of 'data' is not base64: {error}"
        ) from None


def _strings(
    body: memoryview, begin: int, end: int, subject: str, count: int | None, is_base64: bool
) -> list[Element]:
    """Return the elements of an array at some offsets of a body.

    Args:
        count: The number of elements that the shape asks for; None for any.
    """
    text = body[begin:end]
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = begin + len(str(text, "utf-8", "replace")[: error.pos].encode())
        raise InvalidRequest(
            f"{subject}: 'data' is not valid JSON: {error.msg} at byte {where}"
        ) from None
    # The native reader lets a text through as `data` if the model takes any inputs.
    document: list[object] = [read] if isinstance(read, str) else read
    found: list[Element] | None = None
    if not is_base64:
        with suppress(TypeError):
            # Most arrays are flat. This is four times as fast as `leaves`, and raises TypeError for other arrays.
            found = [str.encode(value) for value in document]  # type: ignore[arg-type]
    if found is None:
        found = [
            to_element(value, is_base64, subject, place)
            for place, value in enumerate(leaves(document))
        ]
    if count is not None and len(found) != count:
        raise InvalidRequest(
            f"{subject}: the shape asks for {count} values, but 'data' holds {len(found)}"
        )
    return found


def read_data(
    body: memoryview, entry: Input, index: int, *, is_file: bool = False, open_texts: bool = False
) -> Array | list[Element]:
    """Return the values of an input that is given in JSON.

    JSON carries images and sounds as base64. These BYTES are decoded: strings of an input with the parameter `content_type` of
    `base64`, as MLServer's clients send them; `{"b64": ...}`, as in TensorFlow Serving; and all strings for an input of
    files, unless it has another content type. A data URL is base64 as well.

    Args:
        entry: The input; its `data` is not None.
        is_file: Whether the model's input takes encoded images or sounds.
        open_texts: Whether BYTES may be any number of elements: clients of MLServer give the length of a text as a
            dimension.

    Raises:
        InvalidRequest: The array does not have exactly the values that datatype and shape ask for.
    """
    if entry.data is None:
        raise ValueError(f"input {quote(entry.name)} has no JSON data")
    begin, end = entry.data
    subject = f"input {quote(entry.name)} (index {index})"
    if entry.datatype == "BYTES":
        kind = entry.parameters.get(CONTENT_TYPE)
        is_base64 = kind == BASE64 or (is_file and kind is None)
        is_open = entry.shape == (-1,) or open_texts
        return _strings(body, begin, end, subject, None if is_open else entry.elements, is_base64)
    if entry.datatype in BINARY_ONLY:
        raise InvalidRequest(
            f"{subject}: JSON does not carry {entry.datatype}; send it in the binary data format "
            f"(2 bytes per element after the JSON header, with 'binary_data_size')"
        )
    try:
        values = number_array.read(body, begin, end, entry.datatype, entry.elements)
    except NumbersError as error:
        raise numbers_fault(
            error, body, begin, entry.name, index, entry.datatype, entry.elements
        ) from None
    return values.reshape(entry.shape)

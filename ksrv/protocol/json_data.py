"""The `data` array of an input in JSON: numbers into an array, strings into BYTES elements.

The header's reader has found the span of the array and looked at nothing but its brackets; here
it is read by its content. Nesting does not matter: flat and nested data in row-major order are
the same, and only the number of values is compared with the shape.
"""

import orjson

from ksrv._native.json import number_array
from ksrv._native.json.base64_text import Base64Error, decode
from ksrv._native.json.number_array import NumbersError
from ksrv._native.v2.infer_body import Input
from ksrv.errors import InvalidRequest, quote
from ksrv.protocol.error_texts import numbers_fault
from ksrv.request import Array, Element

_BINARY_ONLY = frozenset(("FP16", "BF16"))


def _walk(document: list[object], subject: str) -> list[Element]:
    """Return nested strings depth first; the header's reader has bounded the nesting."""
    found: list[Element] = []
    pending = [iter(document)]
    while pending:
        for value in pending[-1]:
            if isinstance(value, str):
                found.append(value.encode())
            elif isinstance(value, list):
                pending.append(iter(value))
                break
            else:
                raise InvalidRequest(
                    f"{subject}: value {len(found)} of 'data' is not a string; BYTES data in JSON is "
                    f"one string for each element"
                )
        else:
            pending.pop()
    return found


CONTENT_TYPE, BASE64 = "content_type", "base64"


def _strings(body: memoryview, begin: int, end: int, subject: str, count: int) -> list[Element]:
    text = body[begin:end]
    try:
        document: list[object] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = begin + len(str(text, "utf-8", "replace")[: error.pos].encode())
        raise InvalidRequest(
            f"{subject}: 'data' is not valid JSON: {error.msg} at byte {where}"
        ) from None
    try:
        # Most often the array is flat, and this is four times as fast as the walk.
        found: list[Element] = [str.encode(value) for value in document]  # type: ignore[arg-type]
    except TypeError:
        found = _walk(document, subject)
    if len(found) != count:
        raise InvalidRequest(
            f"{subject}: the shape asks for {count} values, but 'data' holds {len(found)}"
        )
    return found


def _decoded(elements: list[Element], subject: str) -> list[Element]:
    found: list[Element] = []
    for place, element in enumerate(elements):
        try:
            found.append(decode(element))
        except Base64Error as error:
            raise InvalidRequest(
                f"{subject}: element {place} of 'data' is not base64, as its {CONTENT_TYPE} says: {error}"
            ) from None
    return found


def read_data(body: memoryview, entry: Input, index: int) -> Array | list[Element]:
    """Return the values of an input that is given in JSON.

    BYTES with the parameter `content_type` of `base64` are decoded, as MLServer's clients expect: so JSON
    carries images.

    Args:
        body: The whole body.
        entry: The input; its `data` is not None.
        index: Its index in the request.

    Raises:
        InvalidRequest: The array does not hold exactly the values that datatype and shape ask for.
    """
    if entry.data is None:
        raise ValueError(f"input {quote(entry.name)} has no JSON data")
    begin, end = entry.data
    subject = f"input {quote(entry.name)} (index {index})"
    if entry.datatype == "BYTES":
        found = _strings(body, begin, end, subject, entry.elements)
        if entry.parameters.get(CONTENT_TYPE) == BASE64:
            return _decoded(found, subject)
        return found
    if entry.datatype in _BINARY_ONLY:
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

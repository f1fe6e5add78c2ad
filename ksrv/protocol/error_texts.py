"""Turns the faults that the native readers of a REST body report into sentences for the client.

The readers give a code, a byte offset and the numbers that disagree; this module is the only one
that knows the words. Every sentence names the input or output, its index and both numbers.
"""

import re
from collections.abc import Callable

import numpy as np
import orjson

from ksrv._native.infer.infer_body import BodyError
from ksrv._native.json.number_array import NumbersError
from ksrv.errors import BodyTooLarge, InvalidRequest, KsrvError, quote
from ksrv.limits import Limits, limit_name, show_limit
from ksrv.model.datatypes import DTYPES
from ksrv.protocol.tensors import no_datatype

_KINDS = {
    ord('"'): "a string",
    ord("{"): "an object",
    ord("["): "an array",
    ord("t"): "true",
    ord("f"): "false",
    ord("n"): "null",
}

_JSON_FAULTS = {
    "end": "it ends inside a value",
    "control": "a control character inside a string",
    "escape": "a string with an invalid escape",
    "utf8": "bytes that are not UTF-8",
}

_BEGINNINGS = {
    b"\xef\xbb\xbf": "begins with a byte order mark (BOM); send UTF-8 without it",
    b"\xff\xfe": "is UTF-16, which some shells and editors write; send UTF-8",
    b"\xfe\xff": "is UTF-16, which some shells and editors write; send UTF-8",
    b"{\0": "is UTF-16; send UTF-8",
    b"\0{": "is UTF-16; send UTF-8",
    b"\x1f\x8b": "is compressed with gzip; add the header Content-Encoding: gzip",
    b"--": "is a form; send it to /v2/models/NAME/infer with Content-Type: multipart/form-data; boundary=BOUNDARY",
}
_NO_OBJECT = (
    "expected a JSON object. Send a file to /v2/models/NAME/infer, as a form (curl -F NAME=@FILE) or with its Content-Type, "
    "such as image/jpeg; raw bytes need the header Inference-Header-Content-Length: 0"
)
_SPELLINGS = {
    b"'": "JSON has double quotes around names and texts",
    b"True": "JSON has true, false and null",
    b"False": "JSON has true, false and null",
    b"None": "JSON has true, false and null",
    b"NaN": "JSON has no NaN; /generate reads null as NaN",
    b"Infinity": "JSON has no infinities; send them as data of /v2/models/NAME/infer",
    b"-Infinity": "JSON has no infinities; send them as data of /v2/models/NAME/infer",
}

_ABOUT_A_VALUE = frozenset({"type", "dimension", "size_invalid"})
"""Faults of which the offset is that of a value."""

_RANGES = {
    "BOOL": "true and false",
    "FP32": "finite 32-bit numbers, NaN and Infinity",
    "FP64": "finite 64-bit numbers, NaN and Infinity",
    **{
        name: f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
        for name, dtype in DTYPES.items()
        if "INT" in name
    },
}


def _kind(body: memoryview, offset: int) -> str:
    if offset >= len(body):
        return "nothing"
    return _KINDS.get(body[offset], "a number")


_WORDS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_NAMES_OF_NUMBERS = (b"NaN", b"Infinity", b"-Infinity")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z.+-])")


def _syntax(body: memoryview, offset: int) -> str | None:
    """Return the fault at the place of a value, or None where a value begins.

    The readers report a wrong type before they have read the value, so there may be no value at all.
    """
    rest = bytes(body[offset : offset + 400])
    if rest[:1] in (b'"', b"{", b"[") or rest.startswith(_NAMES_OF_NUMBERS) or _NUMBER.match(rest):
        return None
    word = _WORDS.get(rest[:1], b"")
    if word and rest.startswith(word):
        return None
    for wanted, found in zip(word, rest, strict=False):
        if wanted != found:
            break
        offset += 1
    return _unexpected(body, offset)


def _unexpected(body: memoryview, offset: int) -> str:
    if offset >= len(body):
        return f"{_JSON_FAULTS['end']} at byte {offset}"
    return f"unexpected {quote(chr(body[offset]))} at byte {offset}{_remedy(body, offset)}"


def _remedy(body: memoryview, offset: int) -> str:
    """Return how JSON writes the text at a syntax error."""
    rest = bytes(body[offset : offset + 16])
    found = [remedy for spelling, remedy in _SPELLINGS.items() if rest.startswith(spelling)]
    return f"; {found[0]}" if found else ""


def _known_beginning(body: memoryview) -> str | None:
    """Return what a body is that is not JSON by its first bytes, and how to send it."""
    start = bytes(body[:3])
    found = [what for beginning, what in _BEGINNINGS.items() if start.startswith(beginning)]
    return found[0] if found else None


def json_fault(error: orjson.JSONDecodeError, body: memoryview) -> InvalidRequest:
    """Return the answer for a body that orjson cannot read.

    Args:
        body: The whole body.
    """
    what = _known_beginning(body)
    if what is not None:
        return InvalidRequest(f"the body is not valid JSON: it {what}")
    try:
        at = len(str(body, "utf-8")[: error.pos].encode())
        fault = f"{error.msg} at byte {at}{_remedy(body, at)}"
    except UnicodeDecodeError as found:
        at, fault = found.start, f"{_JSON_FAULTS['utf8']} at byte {found.start}"
    hint = "" if at or not body else f"; {_NO_OBJECT}"
    return InvalidRequest(f"the body is not valid JSON: {fault}{hint}")


def _subject(error: BodyError) -> str:
    if error.place == "request":
        return "the request"
    if error.owner:
        return f"{error.place} {quote(error.owner)} (index {error.index})"
    return f"{error.place} {error.index}"


def _request_fault(error: BodyError, body: memoryview) -> str | None:
    """The faults of the document as a whole."""
    match error.code:
        case "empty":
            return "the body is empty; an infer request is a JSON object"
        case "syntax":
            what = _known_beginning(body)
            if what is not None:
                return f"the body is not valid JSON: it {what}"
            hint = "" if error.offset else f"; {_NO_OBJECT}"
            return f"the body is not valid JSON: {_unexpected(body, error.offset)}{hint}"
        case "end" | "control" | "escape" | "utf8":
            fault = _JSON_FAULTS[error.code]
            return f"the body is not valid JSON: {fault} at byte {error.offset}"
        case "depth":
            return f"the JSON is nested deeper than the {limit_name('json_depth')} at byte {error.offset}"
        case "trailing":
            end = error.offset - _spaces(body, error.offset)
            return (
                f"the body continues {error.received} bytes after the JSON object, which ends at "
                f"offset {end}; for binary data the header Inference-Header-Content-Length: {end} "
                f"is needed"
            )
        case "surplus":
            return (
                f"unexpected additional input data: the inputs account for {error.expected} bytes "
                f"after the JSON header, but {error.received} follow it"
            )
    return None


def _spaces(body: memoryview, offset: int) -> int:
    count = 0
    while count < offset and body[offset - count - 1] in b" \t\r\n":
        count += 1
    return count


_NO_INPUTS = (
    "; send plain JSON such as {\"age\": 40} to the same path with /generate in place of /infer, and the 'instances' of "
    "protocol v1 to /v1/models/NAME:predict"
)


def _field_fault(error: BodyError, body: memoryview, subject: str) -> str | None:
    """Faults in the form of a field or parameter."""
    match error.code:
        case "type":
            what = f"parameter {quote(error.name)}" if error.field == "a parameter" else error.field
            if error.field in ("the body", "an entry of 'inputs'", "an entry of 'outputs'"):
                subject = f"{what} at index {error.index}" if error.place != "request" else what
                return f"{subject} must be {error.wanted}, not {_kind(body, error.offset)}"
            return f"{subject}: {what} must be {error.wanted}, not {_kind(body, error.offset)}"
        case "twice":
            return f"{subject}: the key {quote(error.name)} appears twice"
        case "missing":
            hint = _NO_INPUTS if error.field == "'inputs'" else ""
            return f"{subject} has no {error.field}{hint}"
        case "too_many":
            return f"{subject} has more than {error.expected} {error.field}, the limit"
        case "number":
            return f"{subject}: the number of {error.field} at byte {error.offset} is out of range"
        case "reserved":
            return (
                f"{subject}: the parameter {quote(error.name)} is unknown; names that begin with "
                f"'triton_' are reserved"
            )
        case "duplicate_name":
            return f"{error.place} {quote(error.name)} appears twice (again at index {error.index})"
    return None


def _tensor_fault(error: BodyError, body: memoryview, subject: str) -> str | None:
    """Datatype, shape and bytes of one input."""
    match error.code:
        case "datatype":
            return no_datatype(subject, error.name)
        case "dimension":
            return (
                f"{subject}: dimension {error.expected} of 'shape' must be an integer from 0 to "
                f"2147483647, but there is {_kind(body, error.offset)} at byte {error.offset}"
            )
        case "negative":
            return f"{subject}: dimension {error.expected} of 'shape' is negative; expected the size of this request"
        case "overflow":
            return f"{subject}: the product of the shape exceeds the limit"
        case "size_invalid":
            return (
                f"{subject}: 'binary_data_size' must be an unsigned integer, or a string of sizes "
                f'such as "9821,12302"'
            )
        case "data_and_size":
            return f"{subject} has both 'data' and 'binary_data_size'; exactly one may be set"
        case "data_and_shared":
            return f"{subject} has a shared memory region and data too"
        case "size_mismatch":
            return (
                f"input byte size mismatch for {subject}. Expected {error.expected} by datatype and "
                f"shape, got {error.received} as 'binary_data_size'"
            )
        case "size_list_count":
            return (
                f"{subject}: 'binary_data_size' lists {error.received} sizes, but the shape has "
                f"{error.expected} elements"
            )
        case "size_zero":
            return (
                f"{subject}: 'binary_data_size' is 0, but the shape has {error.expected} elements"
            )
        case "bytes_unsized":
            return (
                f"{subject}: BYTES data needs 'binary_data_size', which may be left out only for a "
                f"sole input of one element"
            )
        case "no_data":
            return (
                f"{subject} has no 'data', and no bytes are left for it after the JSON header; "
                f"exactly one of 'data' and binary data must be given"
            )
        case "short":
            return (
                f"unexpected size for {subject}: it takes {error.expected} bytes, but "
                f"{error.received} remain in the body; expecting "
                f"{error.expected - error.received} additional bytes"
            )
        case "not_bool":
            return (
                f"{subject}: byte {error.expected} is {error.received}; a BOOL byte must be 0 or 1"
            )
    return None


def body_fault(error: BodyError, body: memoryview) -> KsrvError:
    """Return the answer for a fault in the header or in the framing of its tensors.

    Args:
        error: The fault that the native reader reported.
        body: The whole body, for the kind of value at the fault.
    """
    fault = _syntax(body, error.offset) if error.code in _ABOUT_A_VALUE else None
    if fault is not None:
        return InvalidRequest(f"the body is not valid JSON: {fault}")
    subject = _subject(error)
    text = (
        _request_fault(error, body)
        or _field_fault(error, body, subject)
        or _tensor_fault(error, body, subject)
    )
    if text is None:
        raise AssertionError(f"no sentence for {error.code}")
    return InvalidRequest(text)


def numbers_fault(
    error: NumbersError,
    body: memoryview,
    begin: int,
    name: str,
    index: int,
    datatype: str,
    count: int,
) -> KsrvError:
    """Return the answer for a fault in an input's JSON numbers.

    Args:
        error: The fault that the native reader reported.
        begin: The index at which the array begins in it.
        count: The values that its shape asks for.
    """
    subject = f"input {quote(name)} (index {index})"
    where = begin + error.offset
    match error.code:
        case "count":
            text = f"{subject}: the shape asks for {count} values, but 'data' holds {error.count}"
        case "kind":
            fault = _syntax(body, where)
            text = (
                f"{subject}: 'data' is not valid JSON: {fault}"
                if fault
                else f"{subject}: value {error.count} of 'data' is {_kind(body, where)}; {datatype} "
                f"takes {_RANGES[datatype]}"
            )
        case "fraction":
            text = (
                f"{subject}: value {error.count} of 'data' has a fraction or an exponent; {datatype} "
                f"takes integers from {_RANGES[datatype]}"
            )
        case "range":
            text = (
                f"{subject}: value {error.count} of 'data' is out of range; {datatype} takes "
                f"{_RANGES[datatype]}"
            )
        case _:
            text = f"{subject}: 'data' is not valid JSON: {_unexpected(body, where)}"
    return InvalidRequest(text)


def json_too_large(size: int, limit: int) -> KsrvError:
    """Return the answer for a request whose JSON is above its limit."""
    return BodyTooLarge(
        f"the JSON of the request has {size} bytes, above the {show_limit('json', limit)}"
    )


def json_refusal(subject: str, most: int, limits: Limits) -> Callable[[int, int], KsrvError]:
    """Return a function that makes the error for JSON that exceeds the route's limit.

    The setting is named only if it is the lower of the two limits, because only then would another value help.

    Args:
        subject: The JSON's name in the error, such as "a generate request".
        most: The route's limit in bytes.
        limits: The limits, with the limit for all JSON.
    """
    if limits.json < most:
        return json_too_large

    def refuse(size: int, limit: int) -> KsrvError:
        return BodyTooLarge(
            f"{subject} may have at most {limit} bytes, got {size}; files, forms and larger requests go to "
            f"/v2/models/NAME/infer"
        )

    return refuse

"""Turns the faults that the native readers of a REST body report into sentences for the client.

The readers report a code, a byte offset and the numbers that disagree. `body_fault` makes the error for the JSON of an
infer request, `numbers_fault` for the numbers of an input in JSON, and `json_fault` for JSON that orjson reads. A
sentence about a tensor names the input or output, its index, and both numbers.
"""

import re
from collections.abc import Callable
from typing import Any

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
"""The kind of a JSON value by its first byte; any other byte begins a number."""

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
"""Predicates for bodies that are not JSON, by their first bytes; most say how to send such a body."""
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
"""Remedies for texts that JSON does not have, by their beginnings."""

_ABOUT_A_VALUE = frozenset({"type", "dimension", "size_invalid"})
"""Faults whose offset is the byte at which a value should begin."""

_RANGES = {
    "BOOL": "true and false",
    **{
        name: f"finite {8 * dtype.itemsize}-bit numbers, NaN and Infinity"
        for name, dtype in DTYPES.items()
        if dtype.kind == "f"
    },
    **{
        name: f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
        for name, dtype in DTYPES.items()
        if dtype.kind in "iu"
    },
}


def _kind(body: memoryview, offset: int) -> str:
    """Return the kind of the JSON value that begins at an offset."""
    if offset >= len(body):
        return "nothing"
    return _KINDS.get(body[offset], "a number")


_WORDS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_NAMES_OF_NUMBERS = (b"NaN", b"Infinity", b"-Infinity")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z.+-])")


def _syntax(body: memoryview, offset: int) -> str | None:
    """Return the syntax fault at an offset that should begin a value, or None if a value begins there.

    The readers report a wrong type before they have read the value, so the JSON may be invalid there.
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
    """Return the fault for a character that JSON does not allow at an offset."""
    if offset >= len(body):
        return f"{_JSON_FAULTS['end']} at byte {offset}"
    return f"unexpected {quote(_character(body, offset))} at byte {offset}{_remedy(body, offset)}"


def _character(body: memoryview, offset: int) -> str:
    """Return the character at an offset. A byte that is not UTF-8 is shown as Latin-1."""
    character = bytes(body[offset : offset + 4]).decode("utf-8", "replace")[0]
    return chr(body[offset]) if character == "\ufffd" else character


def _remedy(body: memoryview, offset: int) -> str:
    """Return how JSON writes the text at a syntax error."""
    rest = bytes(body[offset : offset + 16])
    found = [remedy for spelling, remedy in _SPELLINGS.items() if rest.startswith(spelling)]
    return f"; {found[0]}" if found else ""


def _known_beginning(body: memoryview) -> str | None:
    """Return what a body is that is not JSON, and how to send it; None if its first bytes do not show it."""
    start = bytes(body[:3])
    found = [what for beginning, what in _BEGINNINGS.items() if start.startswith(beginning)]
    return found[0] if found else None


def json_fault(error: orjson.JSONDecodeError, body: memoryview) -> InvalidRequest:
    """Return the error for a body that orjson cannot read.

    Args:
        body: The whole body.
    """
    what = _known_beginning(body)
    if what is not None:
        return InvalidRequest(f"the body is not valid JSON: it {what}")
    try:
        # orjson counts characters, and the errors of ksrv count bytes.
        at = len(str(body, "utf-8")[: error.pos].encode())
        fault = f"{error.msg} at byte {at}{_remedy(body, at)}"
    except UnicodeDecodeError as found:
        at, fault = found.start, f"{_JSON_FAULTS['utf8']} at byte {found.start}"
    hint = "" if at or not body else f"; {_NO_OBJECT}"
    return InvalidRequest(f"the body is not valid JSON: {fault}{hint}")


def read_json(body: memoryview) -> Any:
    """Return the value of a body in JSON.

    Raises:
        InvalidRequest: The body is not valid JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise json_fault(error, body) from None


def _subject(error: BodyError) -> str:
    """Return the part of the request that a fault is in, as a subject for the sentence."""
    if error.place == "request":
        return "the request"
    if error.owner:
        return f"{error.place} {quote(error.owner)} (index {error.index})"
    return f"{error.place} {error.index}"


def _spaces(body: memoryview, offset: int) -> int:
    """Return how many blanks and line ends are before an offset."""
    count = 0
    while count < offset and body[offset - count - 1] in b" \t\r\n":
        count += 1
    return count


_NO_INPUTS = (
    "; send plain JSON such as {\"age\": 40} to the same path with /generate in place of /infer, and the 'instances' of "
    "protocol v1 to /v1/models/NAME:predict"
)

_TEXTS = {
    "empty": "the body is empty; an infer request is a JSON object",
    "depth": "the JSON is nested deeper than the {depth} at byte {offset}",
    "trailing": (
        "the body continues {received} bytes after the JSON object, which ends at offset {end}; for binary data the "
        "header Inference-Header-Content-Length: {end} is needed"
    ),
    "surplus": (
        "unexpected additional input data: the inputs account for {expected} bytes after the JSON header, but {received} "
        "follow it"
    ),
    "twice": "{subject}: the key {name} appears twice",
    "missing": "{subject} has no {field}{hint}",
    "too_many": "{subject} has more than {expected} {field}, the {limit}",
    "number": "{subject}: the number of {field} at byte {offset} is out of range",
    "duplicate_name": "{place} {name} appears twice (again at index {index})",
    "dimension": (
        "{subject}: dimension {expected} of 'shape' must be an integer from 0 to 2147483647, but there is {kind} at byte "
        "{offset}"
    ),
    "negative": "{subject}: dimension {expected} of 'shape' is negative; expected the size of this request",
    "overflow": "{subject}: the product of the shape exceeds the limit",
    "size_invalid": (
        "{subject}: 'binary_data_size' must be an unsigned integer, or a string of sizes such as \"9821,12302\""
    ),
    "data_and_size": "{subject} has both 'data' and 'binary_data_size'; exactly one may be set",
    "data_and_shared": "{subject} has a shared memory region and data too",
    "size_mismatch": (
        "input byte size mismatch for {subject}. Expected {expected} by datatype and shape, got {received} as "
        "'binary_data_size'"
    ),
    "size_list_count": (
        "{subject}: 'binary_data_size' lists {received} sizes, but the shape has {expected} elements"
    ),
    "size_zero": "{subject}: 'binary_data_size' is 0, but the shape has {expected} elements",
    "bytes_unsized": (
        "{subject}: BYTES data needs 'binary_data_size', which may be left out only for a sole input of one element"
    ),
    "no_data": (
        "{subject} has no 'data', and no bytes are left for it after the JSON header; exactly one of 'data' and binary "
        "data must be given"
    ),
    "short": (
        "unexpected size for {subject}: it takes {expected} bytes, but {received} remain in the body; expecting {more} "
        "additional bytes"
    ),
    "not_bool": "{subject}: byte {expected} is {received}; a BOOL byte must be 0 or 1",
}
"""The sentences by the codes of the native reader."""
_LIMITS = {"outputs": "inputs", "sizes": "size_list", "dimensions": "rank"}
"""The limit on what the native reader counts, if it has another name."""


def _type_fault(error: BodyError, body: memoryview, subject: str) -> str:
    what = f"parameter {quote(error.name)}" if error.field == "a parameter" else error.field
    wrong = f"must be {error.wanted}, not {_kind(body, error.offset)}"
    if error.field not in ("the body", "an entry of 'inputs'", "an entry of 'outputs'"):
        return f"{subject}: {what} {wrong}"
    at = "" if error.place == "request" else f" at index {error.index}"
    return f"{what}{at} {wrong}"


def _syntax_fault(error: BodyError, body: memoryview) -> str:
    what = _known_beginning(body)
    if error.code != "syntax":
        fault = f"{_JSON_FAULTS[error.code]} at byte {error.offset}"
    elif what is not None:
        fault = f"it {what}"
    else:
        fault = f"{_unexpected(body, error.offset)}{'' if error.offset else f'; {_NO_OBJECT}'}"
    return f"the body is not valid JSON: {fault}"


def _sentence(error: BodyError, body: memoryview) -> str:
    """Return the sentence for a fault."""
    subject, counted = _subject(error), error.field.partition(" ")[0]
    match error.code:
        case "syntax" | "end" | "control" | "escape" | "utf8":
            return _syntax_fault(error, body)
        case "type":
            return _type_fault(error, body, subject)
        case "datatype":
            return no_datatype(subject, error.name)
    return _TEXTS[error.code].format(
        subject=subject,
        name=quote(error.name),
        field=error.field,
        place=error.place,
        index=error.index,
        offset=error.offset,
        expected=error.expected,
        received=error.received,
        more=error.expected - error.received,
        kind=_kind(body, error.offset),
        depth=limit_name("json_depth"),
        limit=limit_name(_LIMITS.get(counted, counted)),
        end=error.offset - _spaces(body, error.offset),
        hint=_NO_INPUTS if error.field == "'inputs'" else "",
    )


def body_fault(error: BodyError, body: memoryview) -> KsrvError:
    """Return the error for a fault in the JSON of an infer request, or in the sizes of its binary data.

    Args:
        error: The fault that the native reader reported.
        body: The whole body. The error names the kind of value at the fault.
    """
    fault = _syntax(body, error.offset) if error.code in _ABOUT_A_VALUE else None
    if fault is not None:
        return InvalidRequest(f"the body is not valid JSON: {fault}")
    return InvalidRequest(_sentence(error, body))


def numbers_fault(
    error: NumbersError,
    body: memoryview,
    begin: int,
    name: str,
    index: int,
    datatype: str,
    count: int,
) -> KsrvError:
    """Return the error for a fault in an input's JSON numbers.

    Args:
        error: The fault that the native reader reported.
        body: The whole body.
        begin: The offset in the body at which the array of numbers begins.
        count: The number of values that the input's shape asks for.
    """
    subject = f"input {quote(name)} (index {index})"
    value, where = f"{subject}: value {error.count} of 'data'", begin + error.offset
    match error.code:
        case "count":
            text = f"{subject}: the shape asks for {count} values, but 'data' holds {error.count}"
        case "kind":
            fault = _syntax(body, where)
            text = (
                f"{subject}: 'data' is not valid JSON: {fault}"
                if fault
                else f"{value} is {_kind(body, where)}; {datatype} takes {_RANGES[datatype]}"
            )
        case "fraction":
            takes = f"{datatype} takes integers from {_RANGES[datatype]}"
            text = f"{value} has a fraction or an exponent; {takes}"
        case "range":
            text = f"{value} is out of range; {datatype} takes {_RANGES[datatype]}"
        case _:
            text = f"{subject}: 'data' is not valid JSON: {_unexpected(body, where)}"
    return InvalidRequest(text)


def json_too_large(size: int, limit: int) -> KsrvError:
    """Return the error for a request whose JSON exceeds the limit."""
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

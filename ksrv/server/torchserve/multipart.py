"""The parts of a request to TorchServe's routes: raw, urlencoded and multipart bodies.

Strategy: the body lies in one block already, so a multipart body is read in a single pass over it:
one search for each delimiter, one bounded look at each part's head, and a part's content is a slice.
Numbers of parts, heads and boundaries are bounded before they cost anything.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from falcon import parse_header

from ksrv.errors import InvalidRequest, quote
from ksrv.request import Element

PARTS = 1024
PART_HEAD = 8 * 1024
BOUNDARY = 70
"""The longest boundary that MIME allows."""

FORM_BYTES = 64 * 1024 * 1024
BODY = "body"

_VIEWED = 64 * 1024
_AFTER_DELIMITER = re.compile(rb"(--)?[ \t]*(\r\n|\Z)")
_END_OF_HEAD = re.compile(rb"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of a row.

    Attributes:
        name: The key under which the handler finds it.
        value: Its bytes.
        content_type: As sent, or "".
    """

    name: str
    value: Element
    content_type: str = ""


def read_parts(
    body: memoryview, content_type: str | None, query: Sequence[tuple[str, str]] = ()
) -> list[Part]:
    """Return the parts of a request, each name once: of several parts of one name the last stays.

    Args:
        body: The received bytes.
        content_type: The request's `Content-Type`, if there is one.
        query: Query parameters that count as parts; they come first.

    Raises:
        InvalidRequest: The body is no form of the announced kind, or beyond a bound.
    """
    kind, options = parse_header(content_type or "")
    parts = [Part(name, value.encode("utf-8", "replace")) for name, value in query]
    kind = kind.lower()
    if kind == "multipart/form-data":
        parts += _multipart(body, options.get("boundary", ""))
    elif kind == "application/x-www-form-urlencoded" and body:
        parts += _form(body)
    else:
        parts.append(Part(BODY, _element(body), content_type or ""))
    if len(parts) > PARTS:
        raise InvalidRequest(f"the request has more than {PARTS} parts")
    return list(_last_of_each_name(parts))


def _last_of_each_name(parts: Iterable[Part]) -> Iterable[Part]:
    by_name: dict[str, Part] = {}
    for part in parts:
        by_name[part.name] = part
    return by_name.values()


def _element(view: memoryview) -> Element:
    return view if len(view) >= _VIEWED else bytes(view)


def _form(body: memoryview) -> list[Part]:
    if len(body) > FORM_BYTES:
        raise InvalidRequest(f"the form holds {len(body)} bytes; at most {FORM_BYTES} are read")
    try:
        fields = parse_qsl(
            str(body, "utf-8"), keep_blank_values=True, max_num_fields=PARTS, errors="strict"
        )
    except ValueError as error:
        raise InvalidRequest(f"the urlencoded form cannot be read: {error}") from None
    return [Part(name, value.encode()) for name, value in fields]


def _multipart(body: memoryview, boundary: str) -> list[Part]:
    if not boundary or len(boundary) > BOUNDARY or not boundary.isascii():
        raise InvalidRequest(
            f"a multipart body needs a boundary of 1 to {BOUNDARY} ASCII characters, got "
            f"{quote(boundary)}"
        )
    opening = b"--" + boundary.encode("ascii")
    delimiter = re.compile(re.escape(b"\r\n" + opening))
    parts: list[Part] = []
    after = _first_delimiter(body, opening, delimiter)
    while not after[1]:
        if len(parts) == PARTS:
            raise InvalidRequest(f"the multipart body has more than {PARTS} parts")
        name, kind, start = _head(body, after[0], len(parts))
        # The content may be empty, and its delimiter then begins with the head's last line end.
        end, after = _next_delimiter(body, start - 2, delimiter)
        parts.append(Part(name, _element(body[start : max(start, end)]), kind))
    return parts


def _first_delimiter(
    body: memoryview, opening: bytes, delimiter: re.Pattern[bytes]
) -> tuple[int, bool]:
    """Return where the first part begins, and whether there is none."""
    if bytes(body[: len(opening)]) == opening:
        found = _AFTER_DELIMITER.match(body, len(opening))
        if found is not None:
            return found.end(), found[1] is not None
    return _next_delimiter(body, 0, delimiter)[1]


def _next_delimiter(
    body: memoryview, start: int, delimiter: re.Pattern[bytes]
) -> tuple[int, tuple[int, bool]]:
    """Return where the next delimiter begins, where it ends, and whether it is the last."""
    while True:
        found = delimiter.search(body, start)
        if found is None:
            raise InvalidRequest("the multipart body ends without its closing boundary")
        rest = _AFTER_DELIMITER.match(body, found.end())
        if rest is not None:
            return found.start(), (rest.end(), rest[1] is not None)
        start = found.end()


def _head(body: memoryview, start: int, number: int) -> tuple[str, str, int]:
    """Return a part's name and a file's content type, and where its content begins."""
    # A head without fields ends with the line end that the delimiter brought along.
    found = _END_OF_HEAD.search(body, start - 2, start + PART_HEAD)
    if found is None:
        raise InvalidRequest(
            f"part {number} of the multipart body has no head that ends within {PART_HEAD} bytes"
        )
    name, kind, is_file = None, "", False
    for line in bytes(body[start : found.start()]).split(b"\r\n"):
        field, _, value = line.partition(b":")
        text = value.strip().decode("utf-8", "replace")
        match field.strip().lower():
            case b"content-disposition":
                options = parse_header(text)[1]
                name = options.get("name")
                is_file = not options.keys().isdisjoint(("filename", "filename*"))
            case b"content-type":
                kind = text
    if not name:
        raise InvalidRequest(f"part {number} of the multipart body has no name")
    # To TorchServe a part without a file name is a field of a form, which has no content type.
    return name, kind if is_file else "", found.end()

"""Splits a request to TorchServe's routes into named parts: raw, urlencoded and multipart bodies."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from ksrv.errors import InvalidRequest
from ksrv.protocol.forms.multipart import (
    MAX_PARTS,
    MULTIPART,
    as_element,
    header_options,
    media_type,
    read_multipart,
)
from ksrv.request import Element

FORM_BYTES = 64 * 1024 * 1024
"""The largest urlencoded form."""
BODY = "body"
"""The name of the only part of a raw body."""


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
    """Return the parts of a request. If several parts have one name, the last of them is returned.

    Args:
        body: The received bytes.
        content_type: The request's `Content-Type`, if there is one.
        query: Query parameters that count as parts; they come first.

    Raises:
        InvalidRequest: The body is not a form of the announced kind, or is above a limit.
    """
    kind = media_type(content_type or "")
    parts = [Part(name, value.encode("utf-8", "replace")) for name, value in query]
    if kind == MULTIPART:
        boundary = header_options(content_type or "").get("boundary", "")
        # As in TorchServe, a part without a file name is a form field, whose content type is ignored.
        parts += [
            Part(part.name, part.value, part.content_type if part.is_file else "")
            for part in read_multipart(body, boundary)
        ]
    elif kind == "application/x-www-form-urlencoded" and body:
        parts += _form(body)
    else:
        parts.append(Part(BODY, as_element(body), content_type or ""))
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"the request has more than {MAX_PARTS} parts; send several requests")
    return list({part.name: part for part in parts}.values())  # the last of each name


def _form(body: memoryview) -> list[Part]:
    if len(body) > FORM_BYTES:
        raise InvalidRequest(
            f"the form holds {len(body)} bytes; at most {FORM_BYTES} are read: send a file as multipart/form-data"
        )
    try:
        fields = parse_qsl(
            str(body, "utf-8"), keep_blank_values=True, max_num_fields=MAX_PARTS, errors="strict"
        )
    except ValueError as error:
        raise InvalidRequest(
            f"the urlencoded form cannot be read: {error}; expected NAME=VALUE pairs in UTF-8"
        ) from None
    return [Part(name, value.encode()) for name, value in fields]

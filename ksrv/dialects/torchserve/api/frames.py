"""Writes and reads answers as frames of TorchServe's worker protocol: `ts.protocol.otf_message_handler`.

Frames are written for users' scripts and tests that call a handler without a server (`service.py`). They are read if
the real torchserve is installed, because its functions write an intermediate answer as a frame.
All integers are 32-bit, signed and big-endian; a string is its length and its bytes.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ksrv.dialects.torchserve.api.answers import AnswerError, torchserve_item

_INT = struct.Struct("!i")
FAILURE_BODY = b"error"
END = _INT.pack(-1)


def create_predict_response(
    ret: Sequence[Any] | None,
    req_id_map: Mapping[int, str],
    message: str,
    code: int,
    context: Any = None,
    ts_stream_next: bool = False,
) -> bytearray:
    """Return the frame of a batch's answers.

    Args:
        ret: One item for each request, or None after a failure.
        context: The handler's context, which holds statuses and headers; None after a failure.
        ts_stream_next: Whether further answers follow.
    """
    frame = bytearray(_INT.pack(code) + _string(message))
    for index, request_id in req_id_map.items():
        frame += _string(request_id)
        if context is None:
            frame += _string("") + _INT.pack(code) + _string("") + _INT.pack(0)
        else:
            if ts_stream_next:
                context.set_response_header(index, "ts_stream_next", "true")
            frame += _head(context, index)
        try:
            body = FAILURE_BODY if ret is None else torchserve_item(ret[index])[0]
        except AnswerError as error:
            return create_predict_response(None, req_id_map, error.shown, 503)
        frame += _INT.pack(len(body)) + body
    return frame + END


def read_answers(frame: bytes | bytearray) -> dict[str, bytes]:
    """Return the body for each request id in a frame.

    Raises:
        ValueError: The bytes are not a frame.
    """
    at = 0  # the next byte to read

    def number() -> int:
        nonlocal at
        at += _INT.size
        return int(_INT.unpack_from(frame, at - _INT.size)[0])

    def text(length: int) -> bytes:
        nonlocal at
        if not 0 <= length <= len(frame) - at:
            raise ValueError(f"the frame of answers breaks off at byte {at}")
        at += length
        return bytes(frame[at - length : at])

    found = {}
    try:
        number()  # the status of the batch
        text(number())
        while (length := number()) != -1:
            request_id = text(length).decode("utf-8")
            text(number())  # content type
            number()  # status
            text(number())  # phrase
            for _ in range(2 * number()):
                text(number())  # names and values of headers
            found[request_id] = text(number())
    except struct.error as error:
        raise ValueError(f"the frame of answers breaks off: {error}") from None
    return found


def _head(context: Any, index: int) -> bytes:
    code, phrase = context.get_response_status(index)
    headers = context.get_response_headers(index)
    head = _string(context.get_response_content_type(index) or "")
    head += _INT.pack(code) + _string(phrase or "") + _INT.pack(len(headers))
    return head + b"".join(_string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _INT.pack(len(raw)) + raw

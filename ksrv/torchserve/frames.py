"""Answers framed as TorchServe's worker protocol frames them: `create_predict_response`.

Nothing in ksrv's servers reads these frames; scripts and tests that call a handler's service without a
server do. All integers are 32-bit, signed and big-endian; a string is its length and its bytes.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ksrv.torchserve.answers import AnswerError, torchserve_item

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
        req_id_map: The requests' ids by index.
        message: The outcome in words.
        code: The status of the whole batch.
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
            return create_predict_response(None, req_id_map, str(error), 503)
        frame += _INT.pack(len(body)) + body
    return frame + END


def _head(context: Any, index: int) -> bytes:
    code, phrase = context.get_response_status(index)
    headers = context.get_response_headers(index)
    head = _string(context.get_response_content_type(index) or "")
    head += _INT.pack(code) + _string(phrase or "") + _INT.pack(len(headers))
    return head + b"".join(_string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _INT.pack(len(raw)) + raw

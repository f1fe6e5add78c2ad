"""Intermediate answers: `ts.handler_utils.utils.send_intermediate_predict_response`."""

from collections.abc import Mapping, Sequence
from typing import Any


def send_intermediate_predict_response(
    ret: Sequence[Any],
    req_id_map: Mapping[int, str] | None,
    message: str,
    code: int,
    context: Any = None,
) -> None:
    """Send one chunk to each request of the running batch; the handler's return value is the last.

    Args:
        ret: One item for each row.
        req_id_map: `context.request_ids`.
        message: Ignored: the front end words its own answer.
        code: Ignored, for the same reason.
        context: The handler's context.

    Raises:
        ValueError: The number of items is not the number of rows.
    """
    chunks = getattr(context, "cl_socket", None)
    if chunks is None:
        return
    rows = len(context.request_processor)
    if len(ret) != rows:
        raise ValueError(f"{len(ret)} intermediate answers were given for a batch of {rows} rows")
    chunks.send(ret)

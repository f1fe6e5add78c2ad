"""Intermediate answers: `ts.handler_utils.utils.send_intermediate_predict_response`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksrv.torchserve.answers import AnswerError, torchserve_item


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


def create_predict_response(
    ret: Sequence[Any],
    req_id_map: Mapping[int, str],
    message: str,
    code: int,
    context: Any = None,
    ts_stream_next: bool = False,
) -> bytearray:
    """Return the items one after the other, as TorchServe's routes send them.

    TorchServe's own function frames them for its front end, which does not exist here.

    Raises:
        AnswerError: JSON cannot express an item.
    """
    try:
        return bytearray(b"".join(torchserve_item(item)[0] for item in ret))
    except AnswerError as error:
        raise ValueError(str(error)) from error

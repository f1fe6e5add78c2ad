"""Intermediate answers: `ts.handler_utils.utils.send_intermediate_predict_response`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any


def send_intermediate_predict_response(
    ret: Sequence[Any],
    req_id_map: Mapping[int, str] | None,
    message: str,
    code: int,
    context: Any = None,
) -> None:
    """Send one chunk to requests of the running batch. The handler's return value will be the last chunk.

    In a distributed model only the process of rank 0 sends. Clients that have left are skipped;
    `context.listening()` tells whether any client still waits.

    Args:
        req_id_map: For each index in `ret` the id of the request that gets the item: `context.request_ids`, or some of
            these ids, numbered from 0. None for `context.request_ids`.
        message: Ignored: the front end writes a different message.

    Raises:
        ValueError: There are fewer items than ids, or an id is not one of the running batch.
    """
    chunks = getattr(context, "cl_socket", None)
    if chunks is None or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    known: Mapping[int, str] = context.request_ids
    wanted = known if req_id_map is None else req_id_map
    rows: dict[str, list[int]] = {}
    for row, name in known.items():
        rows.setdefault(name, []).append(row)
    if max(wanted, default=-1) >= len(ret):
        raise ValueError(
            f"{len(ret)} intermediate answers were given for {len(wanted)} requests; give one for each"
        )
    chosen: dict[int, Any] = {}
    for index, name in wanted.items():
        if not rows.get(name):
            raise ValueError(
                f"the running batch has no further row of a request {name!r}; give the ids of context.request_ids"
            )
        chosen[rows[name].pop(0)] = ret[index]  # a request may own several rows
    chunks.send(chosen)

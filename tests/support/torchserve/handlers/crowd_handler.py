"""Streams to every row of its batch until one of their clients has left."""

import time

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    rows = range(len(data))
    send_intermediate_predict_response(
        ["chunk "] * len(data), context.request_ids, "", 200, context
    )
    while all(context.listening(row) for row in rows):
        time.sleep(0.01)
    return ["last"] * len(data)

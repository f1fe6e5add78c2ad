"""The errors of requests that a queue refuses or that expire in it: full, expired, too large, no memory."""

from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.queue import request_queue as native
from ksrv.errors import BodyTooLarge, DeadlineExceeded, InvalidRequest, KsrvError, Overloaded
from ksrv.limits import show_limit


def queue_full(model: str, queue_size: int) -> Overloaded:
    """Return the error for a request that finds the queue full."""
    return Overloaded(
        f"the queue of the model {model} is full: {show_limit('queue_size', queue_size)}",
        "queue_full",
    )


def too_many_parts(model: str, rows: int, batch_rows: int, queue_size: int) -> InvalidRequest:
    """Return the error for a request that would be split into more parts than fit into the queue.

    Args:
        queue_size: How many requests fit into the model's queue.
    """
    parts = -(-rows // batch_rows)
    return InvalidRequest(
        f"the request has {rows} rows, which make {parts} batches by the "
        f"{show_limit('max_batch_size', batch_rows)} of the model {model}; its queue never holds so many: "
        f"{show_limit('queue_size', queue_size)}; send at most {batch_rows * queue_size} rows in one request"
    )


def deadline_exceeded(model: str, waited_ms: int, *, running: bool) -> DeadlineExceeded:
    """Return the error for a request whose deadline passed.

    Args:
        running: Whether a handler had begun it.
    """
    where = "while the handler ran" if running else "before a handler could start it"
    return DeadlineExceeded(
        f"the deadline of the request to the model {model} passed after {waited_ms} ms, {where}"
    )


def answer_without_room() -> Overloaded:
    """Return the error for a streaming request whose next answer does not fit into the memory budget."""
    return Overloaded(
        f"requests and answers in flight hold {PROCESS.held} bytes; with the next answer of the stream they would "
        f"pass the {show_limit('in_flight', PROCESS.bound)}",
        "memory",
    )


def refusal(pushed: int, model: str, queue_size: int, nbytes: int) -> KsrvError:
    """Return the error for a request that was not queued.

    Args:
        pushed: The result of `Queue.push`: a constant of `ksrv._native.queue.request_queue`.
        nbytes: The bytes of the request's tensors.
    """
    if pushed == native.EXPIRED:
        return DeadlineExceeded(
            f"the deadline of the request to the model {model} had passed when it arrived"
        )
    if pushed == native.FULL:
        return queue_full(model, queue_size)
    bound = PROCESS.bound
    if pushed == native.BYTES_IN_FLIGHT and nbytes > bound:
        return BodyTooLarge(
            f"the request holds {nbytes} bytes, above the {show_limit('in_flight', bound)} of "
            f"all requests together"
        )
    if pushed == native.BYTES_IN_FLIGHT:
        return Overloaded(
            f"the requests in flight hold {PROCESS.held} bytes; with this request they would pass "
            f"the {show_limit('in_flight', bound)}",
            "bytes_in_flight",
        )
    return Overloaded("the server has no memory for another request", "memory")

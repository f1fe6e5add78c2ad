"""The cost of the queue of a model for each request, with 10,000 requests that wait and with 32.

A batch of 32 requests is taken, started and finished, and 32 requests are pushed, so that as many wait as before. All
of it runs on one thread, and the handles are made before.

`one key`: all requests may be batched together. `delay`: the same, with `max_delay_ms`. `100 keys`: the 10,000 requests
have 100 shapes, and only requests of the same shape share a batch; the 32 have one shape, because 32 requests of 100
shapes make no batch. `priorities`: ten priorities. `deadlines`: each request has a deadline.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.queue.request_queue import Queue

BATCH = 32
HOUR_NS = 3_600_000_000_000


def handle(number: int, form: str, waiting: int) -> Any:
    """Return a handle for the request with this number, for a queue in which so many requests wait."""
    key = number % 100 if form == "100 keys" and waiting > BATCH else 0
    priority = number % 10 + 1 if form == "priorities" else 0
    deadline = time.monotonic_ns() + HOUR_NS + number if form == "deadlines" else None
    return NativeHandle(None, 1, key, priority, deadline)


def batches(form: str, waiting: int) -> Callable[[list[Any]], None]:
    """Return a function that runs a batch of a queue in which so many requests wait, and pushes others."""
    queue = Queue(waiting + BATCH)
    slot = queue.add_slot()
    delay = HOUR_NS if form == "delay" else 0
    for number in range(waiting):
        queue.push(handle(number, form, waiting))

    def run(pushed: list[Any]) -> None:
        for request in pushed:
            queue.push(request)
        taken = queue.take(slot, BATCH, BATCH, delay)
        assert isinstance(taken, list) and len(taken) == BATCH
        queue.finish(queue.start(taken), taken)

    return run


@pytest.mark.parametrize("way", [f"{BATCH} waiting", "10,000 waiting"])
@pytest.mark.parametrize("form", ["one key", "delay", "100 keys", "priorities", "deadlines"])
def test_batch(benchmark: Any, form: str, way: str) -> None:
    waiting = int(way.split()[0].replace(",", ""))
    benchmark.group = f"queue: a batch of 32, {form}"
    run = batches(form, waiting)
    numbers = iter(range(waiting, 10**9))

    def setup() -> tuple[tuple[list[Any]], dict[str, Any]]:
        return ([handle(next(numbers), form, waiting) for _ in range(BATCH)],), {}

    benchmark.pedantic(run, setup=setup, rounds=2000)

"""Sends recorded requests again, at the recorded pace or at another rate, and compares the answers with the records."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ksrv.client import Client
from ksrv.client.errors import ClientError, StatusError
from ksrv.errors import InferenceError
from ksrv.records import Record, read_records
from ksrv.shadow.difference import Answer, Incomparable, answer_of, array_of, difference

MOST_SHOWN = 10
"""The most differences that a replay describes in words."""


@dataclass
class Replayed:
    """The result of a replay.

    Attributes:
        sent: Requests that were sent.
        equal: Requests whose answers equal the recorded answers, or that failed with the recorded error.
        different: Requests whose answers differ.
        failed: Failed requests by status or exception, without requests that failed with the recorded error.
        skipped: Records that were not sent, by the reason.
        examples: The first differences and failures, in words.
        seconds: The duration of the replay.
        latest_s: The longest delay of a request after it was due, because all connections were in use.
        latencies_ms: The latency of each request that was sent.
    """

    sent: int = 0
    equal: int = 0
    different: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0
    latest_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        shown = sorted(self.latencies_ms)
        return {
            "sent": self.sent,
            "equal": self.equal,
            "different": self.different,
            "failed": dict(self.failed),
            "skipped": dict(self.skipped),
            "seconds": self.seconds,
            "latest_ms": self.latest_s * 1e3,
            "p50_ms": shown[len(shown) // 2] if shown else None,
            "p99_ms": shown[len(shown) * 99 // 100] if shown else None,
            "examples": self.examples,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the result as text."""
        document = self.document()
        yield (
            f"{self.sent} requests sent in {self.seconds:.1f} s: {self.equal} answers equal, {self.different} different, "
            f"{sum(self.failed.values())} failed"
        )
        if self.latencies_ms:
            yield f"latency: p50 {document['p50_ms']:.1f} ms, p99 {document['p99_ms']:.1f} ms"
        for reason, count in self.skipped.items():
            yield f"{count} records not sent: {reason}"
        if self.latest_s > 0.1:
            yield (
                f"a request was sent {self.latest_s:.1f} s late, because all connections waited; give more --connections"
            )
        yield from self.examples


def records_of(path: Path, model: str, version: str) -> list[Record]:
    """Return the records of one model, in the order in which the requests arrived.

    Args:
        version: The version whose records are returned; "" for all.

    Raises:
        RecordError: The records cannot be read.
    """
    found = [
        record
        for record in read_records(path)
        if record.model == model and (not version or record.version == version)
    ]
    return sorted(found, key=lambda record: record.time)


def due_times(records: Sequence[Record], rate: float | None, speed: float) -> list[float]:
    """Return when each request is due, in seconds from the first.

    Args:
        rate: Requests a second; None for the recorded pace.
        speed: How many times faster than the recorded pace.
    """
    if rate is not None:
        return [number / rate for number in range(len(records))]
    return [(record.time - records[0].time) / speed for record in records]


def replay(
    client: Client,
    model: str,
    version: str,
    records: Sequence[Record],
    due: Sequence[float],
    *,
    connections: int,
    tolerance: float,
    progress: Callable[[int], None] = lambda sent: None,
) -> Replayed:
    """Send requests when they are due, and compare their answers.

    Args:
        version: The version to send the requests to; "" for the default version.
        connections: The most requests at the same time.
        tolerance: A number may differ from the recorded number R by tolerance * (1 + |R|).
        progress: Called with the number of requests that were sent so far.
    """
    result = Replayed()
    lock = threading.Lock()
    begun = time.monotonic()

    def send(record: Record, due_s: float) -> None:
        late = time.monotonic() - begun - due_s
        try:
            answered_ms, differs, failure = _ask(client, model, version, record, tolerance)
        except Incomparable as error:
            with lock:
                result.skipped[str(error)] += 1
            return
        with lock:
            result.sent += 1
            result.latest_s = max(result.latest_s, late)
            result.latencies_ms.append(answered_ms)
            if failure:
                result.failed[failure] += 1
            elif differs:
                result.different += 1
            else:
                result.equal += 1
            if differs and len(result.examples) < MOST_SHOWN:
                result.examples.append(f"{record.id}: {differs}")
            progress(result.sent)

    with ThreadPoolExecutor(connections) as threads:
        # A request is submitted only if a connection is free, so that `late` measures the wait for a connection.
        free = threading.Semaphore(connections)

        def release(_: object) -> None:
            free.release()

        futures = []
        for record, due_s in zip(records, due, strict=True):
            time.sleep(max(0.0, begun + due_s - time.monotonic()))
            free.acquire()
            future = threads.submit(send, record, due_s)
            future.add_done_callback(release)
            futures.append(future)
        for future in futures:
            future.result()
    result.seconds = time.monotonic() - begun
    return result


def _ask(
    client: Client, model: str, version: str, record: Record, tolerance: float
) -> tuple[float, str, str]:
    """Send a request.

    Returns:
        The latency in milliseconds, how the answer differs from the record ("" if it does not), and the kind of
        failure ("" for an answer, and for the failure that was recorded).
    """
    inputs = {tensor.name: array_of(tensor) for tensor in record.inputs}
    expected = [answer_of(chunk) for chunk in record.chunks]
    if record.outputs or not record.chunks:  # not streamed, or the last part of a stream
        expected.append(answer_of(record.outputs or ()))
    given = {
        "version": version,
        "outputs": record.wanted or None,
        "parameters": record.request_parameters() or None,
        "request_id": record.id,
    }
    began = time.monotonic()
    try:
        if record.streamed:
            got: list[Answer] = list(client.stream(model, inputs, **given))  # type: ignore[arg-type]
        else:
            got = [client.infer(model, inputs, **given)]  # type: ignore[arg-type]
    except StatusError as error:
        took = (time.monotonic() - began) * 1e3
        if record.failure is not None and _same_status(client, record.failure.status, error.status):
            return took, "", ""
        return took, f"it failed with {error}", str(error.status)
    except ClientError as error:
        took = (time.monotonic() - began) * 1e3
        return took, f"it failed: {error}", type(error).__name__
    took = (time.monotonic() - began) * 1e3
    if record.failure is not None:
        return took, f"it was answered; recorded is the error {record.failure.status}", ""
    if len(got) != len(expected):
        return took, f"it has {len(got)} parts; recorded are {len(expected)}", ""
    for wanted, found in zip(expected, got, strict=True):
        if differs := difference(wanted, found, tolerance):
            return took, differs, ""
    return took, "", ""


def _same_status(client: Client, wanted: int, got: int) -> bool:
    if wanted == got or not client.url.startswith("grpc"):
        return wanted == got
    # Several HTTP statuses have the same gRPC code.
    return InferenceError("", wanted).grpc_code == InferenceError("", got).grpc_code

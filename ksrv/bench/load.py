"""Sends a load to a server, over REST or gRPC, and measures latencies: `run`.

The measured time follows a warm-up. Each connection has a thread (a sender), and the connections may be spread over
several processes.

- In a **closed loop** each sender waits for its answer before it sends the next request. So a slow server gets fewer
  requests. Requests that are under way when the measured time ends are waited for: otherwise a server that stalls at
  the end would show only its latencies from before.
- In an **open loop** requests are due at times that do not depend on answers. A latency counts from the time when the
  request was due, even if all connections were waiting for a slow server then. Latencies that count from the real
  send time hide exactly the slow moments ("coordinated omission").
"""

import gc
import itertools
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ksrv.client.grpc_calls import GrpcTransport, message_of
from ksrv.client.http1.connections import ConnectionPool
from ksrv.client.http1.messages import make_target
from ksrv.client.operations import Operation
from ksrv.client.rest import answer_of, http_request
from ksrv.client.tensors import Array
from ksrv.client.waiting import BLOCKING, wait

START_SECONDS = 0.2
"""The time between the last sender becoming ready and the first request, in which all threads are started."""

READY_SECONDS = 60.0
"""How long processes may take to start and to make their senders."""


@dataclass(frozen=True)
class Endpoint:
    """The server that is called, and its credentials. The URL's scheme chooses REST or gRPC."""

    url: str
    token: str | None = None
    ca: str | None = None
    timeout: float = 30.0


@dataclass(frozen=True)
class Load:
    """The load on a server.

    Attributes:
        connections: Open connections.
        rate: Requests a second in an open loop; None for a closed loop.
        poisson: Whether the requests of an open loop are due at random times, like the requests of many
            independent clients; else at equal intervals.
        warm_up: Seconds at the start that are not measured.
        seconds: Seconds that are measured.
        processes: The number of processes over which the connections are spread.
    """

    connections: int
    rate: float | None = None
    poisson: bool = True
    warm_up: float = 2.0
    seconds: float = 10.0
    processes: int = 1


@dataclass
class Samples:
    """The latencies and failures of a load.

    Attributes:
        latencies: Seconds of each request that was answered without an error: in a closed loop the requests that were
            answered in the measured time, in an open loop the requests that were due in it and were sent.
        waits: Seconds that the other requests waited: in a closed loop the requests that were under way at the end
            of the measured time, in an open loop the requests that were due and could not be sent.
        errors: How many requests failed after the warm-up, by status or kind, also after the measured time.
        example: The text of the first failure.
        client_cpu: Seconds of CPU that the senders used in the measured time.
        seconds: The time in which the answers in `latencies` arrived.
    """

    latencies: Array = field(default_factory=lambda: np.empty(0))
    waits: Array = field(default_factory=lambda: np.empty(0))
    errors: Counter[str] = field(default_factory=Counter)
    example: str = ""
    client_cpu: float = 0.0
    seconds: float = 0.0

    def add(self, other: "Samples") -> None:
        """Add the samples of another process, which sent requests at the same time."""
        self.latencies = np.concatenate([self.latencies, other.latencies])
        self.waits = np.concatenate([self.waits, other.waits])
        self.errors += other.errors
        self.example = self.example or other.example
        self.client_cpu += other.client_cpu
        self.seconds = max(self.seconds, other.seconds)


class RestSender:
    """A connection of HTTP."""

    def __init__(self, endpoint: Endpoint, operations: Sequence[Operation]) -> None:
        target = make_target(endpoint.url, endpoint.token, endpoint.ca, None)
        self._pool = ConnectionPool(target, BLOCKING.open_channel, repeats=False)
        self._timeout = endpoint.timeout
        self._operations = operations
        self._requests = [http_request(operation) for operation in operations]

    def send(self, index: int) -> None:
        """Send a request and wait for its answer."""
        position = index % len(self._requests)
        deadline = time.monotonic() + self._timeout
        response = wait(self._pool.send(self._requests[position], deadline))
        if response.status != HTTPStatus.OK:
            answer_of(self._operations[position], response)  # raises the error

    def close(self) -> None:
        """Close the connection."""
        wait(self._pool.close())


class GrpcSender:
    """A channel of gRPC."""

    def __init__(self, endpoint: Endpoint, operations: Sequence[Operation]) -> None:
        self._transport = GrpcTransport("grpc", endpoint.url, endpoint.token, endpoint.ca, None)
        self._timeout = endpoint.timeout
        self._messages = [message_of(operation) for operation in operations]

    def send(self, index: int) -> None:
        """Send a request and wait for its answer."""
        message = self._messages[index % len(self._messages)]
        with self._transport.converted_errors():
            self._transport.call_of("ModelInfer")(message, timeout=self._timeout)

    def close(self) -> None:
        """Close the channel."""
        wait(self._transport.close())


Sender: TypeAlias = RestSender | GrpcSender
"""One connection."""


def run(
    endpoint: Endpoint,
    operations: Sequence[Operation],
    load: Load,
    observe: Callable[[], None] | None = None,
) -> Samples:
    """Put a load on a server, and return the latencies and failures.

    Args:
        operations: The requests, which are sent in turn.
        observe: Called at the begin and at the end of the measured time, on another thread.
    """
    if load.processes > 1:
        return _run_processes(endpoint, operations, load, observe)
    with make_senders(endpoint, operations, load.connections) as senders:
        begin = time.monotonic() + START_SECONDS
        with _observing(observe, load, begin):
            return _run_share(senders, load, 0, begin)


@contextmanager
def _observing(observe: Callable[[], None] | None, load: Load, begin: float) -> Iterator[None]:
    """Call `observe` at the begin and at the end of the measured time."""

    def work(observe: Callable[[], None]) -> None:
        for seconds in (load.warm_up, load.warm_up + load.seconds):
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            observe()

    if observe is None:
        yield
        return
    observer = threading.Thread(target=work, args=(observe,), daemon=True)
    observer.start()
    yield
    observer.join()


def _run_processes(
    endpoint: Endpoint,
    operations: Sequence[Operation],
    load: Load,
    observe: Callable[[], None] | None,
) -> Samples:
    """Spread a load over processes, which begin together once the last of them is ready."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(load.processes + 1)
    with context.Pool(load.processes, _StartBarrier.set, (ready,)) as pool:
        shares = [(endpoint, operations, load, number) for number in range(load.processes)]
        result = pool.starmap_async(_share_of_process, shares, chunksize=1)
        try:
            ready.wait(READY_SECONDS)
        except threading.BrokenBarrierError:
            result.get(READY_SECONDS)  # raises the error of the process that failed
            raise
        with _observing(observe, load, time.monotonic() + START_SECONDS):
            samples, *others = result.get()
    for other in others:
        samples.add(other)
    return samples


class _StartBarrier:
    """The barrier at which a process of the pool waits until all are ready.

    It is set by the pool's initializer, because a barrier cannot be an argument of a task.
    """

    ready: ClassVar[Any] = None

    @classmethod
    def set(cls, ready: Any) -> None:
        """Set the barrier of this process."""
        cls.ready = ready


def _share_of_process(
    endpoint: Endpoint, operations: Sequence[Operation], load: Load, process: int
) -> Samples:
    try:
        connections = len(range(process, load.connections, load.processes))
        with make_senders(endpoint, operations, connections) as senders:
            _StartBarrier.ready.wait(READY_SECONDS)
            return _run_share(senders, load, process, time.monotonic() + START_SECONDS)
    except threading.BrokenBarrierError:
        return Samples()  # another process has failed, and raises its error
    except BaseException:
        _StartBarrier.ready.abort()  # the others must not wait for this process
        raise


@contextmanager
def make_senders(
    endpoint: Endpoint, operations: Sequence[Operation], connections: int
) -> Iterator[list[Sender]]:
    """Make senders, and keep the garbage collector out of the measured time."""
    make = GrpcSender if endpoint.url.startswith("grpc") else RestSender
    senders: list[Sender] = [make(endpoint, operations) for _ in range(connections)]
    gc.collect()
    gc.disable()
    try:
        yield senders
    finally:
        gc.enable()
        for sender in senders:
            sender.close()


def _run_share(senders: Sequence[Sender], load: Load, process: int, begin: float) -> Samples:
    """Run one process's part of a load, which begins at a time of the monotonic clock."""
    if load.rate is None:
        return closed_loop(senders, load, begin)
    share = load.rate / load.processes
    return open_loop(senders, due_times(load, share, process), load, begin)


def due_times(load: Load, rate: float, process: int) -> Array:
    """Return when the requests that a process sends in an open loop are due, in seconds from its begin.

    Args:
        rate: Requests a second of the process.
        process: The number of the process, from 0.
    """
    total = load.warm_up + load.seconds
    if not load.poisson:
        # The processes take turns.
        return np.arange(process / (rate * load.processes), total, 1 / rate)
    # Ten standard deviations more intervals than expected; times after the end are dropped.
    count = int(total * rate + 10 * (total * rate) ** 0.5 + 10)
    times = np.cumsum(np.random.default_rng(process).exponential(1 / rate, count))
    return times[times < total]


def closed_loop(senders: Sequence[Sender], load: Load, begin: float) -> Samples:
    """Have each sender send its next request when it has its answer.

    Args:
        begin: When the load begins, in seconds of the monotonic clock.
    """
    end = begin + load.warm_up + load.seconds
    numbers = itertools.count()

    def work(sender: Sender, record: "Record") -> None:
        time.sleep(max(0.0, begin - time.monotonic()))
        while (start := time.monotonic()) < end:
            record.send(sender, next(numbers), start)

    return _collect(senders, work, load, begin, measure_by_end=True)


def open_loop(senders: Sequence[Sender], due: Array, load: Load, begin: float) -> Samples:
    """Send requests when they are due, or as soon after it as a sender is free.

    Args:
        due: When each request is due, in seconds from the begin.
        begin: When the load begins, in seconds of the monotonic clock.
    """
    times = (due + begin).tolist()
    end = begin + load.warm_up + load.seconds
    # Requests that no sender could take by this time are not sent.
    give_up = end + min(load.seconds, 5.0)
    numbers = itertools.count()
    unsent: list[float] = []

    def work(sender: Sender, record: "Record") -> None:
        while (number := next(numbers)) < len(times):
            intended = times[number]
            now = time.monotonic()
            if now > give_up:
                unsent.append(intended)
                continue
            if now < intended:
                time.sleep(intended - now)
            record.send(sender, number, intended)

    samples = _collect(senders, work, load, begin, measure_by_end=False)
    missed = np.array([intended for intended in unsent if intended >= begin + load.warm_up])
    samples.waits = time.monotonic() - missed  # they have waited at least until now
    return samples


class Record:
    """The latencies and failures of one thread."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.failures: list[tuple[float, str, str]] = []

    def send(self, sender: Sender, number: int, start: float) -> None:
        """Send a request, and store its times or its failure.

        Args:
            start: The time from which the latency counts.
        """
        try:
            sender.send(number)
        except Exception as error:  # noqa: BLE001  the thread would end, and its requests would be missing unnoticed
            kind = str(getattr(error, "status", type(error).__name__))
            self.failures.append((time.monotonic(), kind, str(error)))
        else:
            self.starts.append(start)
            self.ends.append(time.monotonic())


def _collect(
    senders: Sequence[Sender],
    work: Callable[[Sender, Record], None],
    load: Load,
    begin: float,
    *,
    measure_by_end: bool,
) -> Samples:
    """Run a thread for each sender, and return the samples of the measured time.

    Args:
        measure_by_end: Whether a request belongs to the time in which its answer arrived, else to the time in which
            it was due.
    """
    records = [Record() for _ in senders]
    threads = [
        threading.Thread(target=work, args=pair, daemon=True)
        for pair in zip(senders, records, strict=True)
    ]
    for thread in threads:
        thread.start()
    first, last = begin + load.warm_up, begin + load.warm_up + load.seconds
    time.sleep(max(0.0, first - time.monotonic()))
    cpu = time.process_time()
    time.sleep(max(0.0, last - time.monotonic()))
    cpu = time.process_time() - cpu
    for thread in threads:
        thread.join()
    starts = np.array([start for record in records for start in record.starts])
    ends = np.array([end for record in records for end in record.ends])
    counted = (ends if measure_by_end else starts) >= first
    under_way = ends > last if measure_by_end else np.zeros(len(ends), bool)
    counted &= ~under_way
    failures = [entry for record in records for entry in record.failures if entry[0] >= first]
    seconds = load.seconds
    if not measure_by_end and counted.any():  # answers may arrive after the measured time
        seconds = max(seconds, float(ends[counted].max()) - first)
    return Samples(
        latencies=(ends - starts)[counted],
        waits=(ends - starts)[under_way],
        errors=Counter(kind for _, kind, _ in failures),
        example=min(failures)[2] if failures else "",
        client_cpu=cpu,
        seconds=seconds,
    )

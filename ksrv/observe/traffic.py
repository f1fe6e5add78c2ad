"""Counters of a worker's front ends: refusals by reason, errors by status, connections.

Each refusal is counted here, once, when its answer is made: `count_error` for an error
that is rendered, `count_refusal` if a client gets no answer that could be counted (a connection that
is closed, a call that another library ends). The counts are the process's.

The HTTP server counts without Python; its counts are read when the metrics page is rendered (`watch_connections`).
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from ksrv.errors import KsrvError

Protocol: TypeAlias = Literal["http", "grpc"]


class Traffic(msgspec.Struct):
    """The counts of one worker, or the sums of several.

    Attributes:
        refused: Requests that were turned away, by "protocol reason".
        errors: Answers with an error, by "protocol status".
        accepted: HTTP connections that were accepted.
        recycled: Idle connections that were closed to make room for new connections.
        pauses: How often accepting paused, because no further connection could be held.
        lacked_descriptors: How many of these pauses were for want of file descriptors.
        lost_lines: Lines of the log and of the access log that were dropped, because nothing took them in time.
        open: HTTP connections that are open now.
    """

    refused: dict[str, int] = {}
    errors: dict[str, int] = {}
    accepted: int = 0
    recycled: int = 0
    pauses: int = 0
    lacked_descriptors: int = 0
    lost_lines: int = 0
    open: int = 0

    def add(self, other: "Traffic", *, lives: bool) -> None:
        """Add the counts of another worker, or of another part of this worker.

        Args:
            lives: Whether the connections that it holds are still open.
        """
        for mine, theirs in ((self.refused, other.refused), (self.errors, other.errors)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        self.accepted += other.accepted
        self.recycled += other.recycled
        self.pauses += other.pauses
        self.lacked_descriptors += other.lacked_descriptors
        self.lost_lines += other.lost_lines
        if lives:
            self.open += other.open


_lock = threading.Lock()
_refused: Counter[str] = Counter()
_errors: Counter[str] = Counter()
_sources: list[Callable[[], Traffic]] = []


def count_refusal(protocol: Protocol, reason: str) -> None:
    """Count a request, or a connection, that was turned away.

    Args:
        reason: Why, in a word or two joined by underscores. It becomes a label of
            `ksrv_refused_requests_total`, so it must be one of a few that docs/protocol.md lists,
            and never a client's text. "" counts nothing.
    """
    if reason:
        with _lock:
            _refused[f"{protocol} {reason}"] += 1


def count_status(protocol: Protocol, status: int | str) -> None:
    """Count an answer that tells of an error.

    Args:
        status: The HTTP status, or the name of the gRPC code.
    """
    with _lock:
        _errors[f"{protocol} {status}"] += 1


def count_error(error: KsrvError) -> None:
    """Count a gRPC call, or a message of a stream, that is answered with an error.

    Args:
        error: The error of the answer; its `reason` is counted where it has one.
    """
    count_refusal("grpc", error.reason)
    count_status("grpc", error.grpc_code)


def watch_connections(source: Callable[[], Traffic]) -> None:
    """Have the counts of a server that holds connections added to the process's counts.

    Args:
        source: Returns its counts so far; it lives as long as the process.
    """
    _sources.append(source)


def unwatch_connections(source: Callable[[], Traffic]) -> None:
    """Forget a server that has stopped, and keep its counts.

    Args:
        source: As it was given to `watch_connections`.
    """
    last = source()
    _sources.remove(source)
    with _lock:
        _refused.update(last.refused)
        _errors.update(last.errors)


def own_traffic() -> Traffic:
    """Return what this process has counted so far."""
    with _lock:
        total = Traffic(dict(_refused), dict(_errors))
    for source in _sources:
        total.add(source(), lives=True)
    return total

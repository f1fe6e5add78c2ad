"""Counters of a worker's front ends: refusals by reason, errors by status, connections.

Python code counts a refusal or error once, when it makes the answer (`count_refusal`, `count_status`). The native HTTP
and gRPC servers count in C++. `watch_connections` registers such a server; `own_traffic` adds its counts when the
metrics page is rendered.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from ksrv._native.reactor.counters import REFUSALS
from ksrv._native.server.batch_spans import lost_spans
from ksrv.statistics import Counts, Row, gauge

Protocol: TypeAlias = Literal["http", "grpc"]


class Traffic(Counts):
    """Connections, refusals and error answers; the keys of dictionaries are the labels, joined by a space.

    A field with the name of a counter in native/reactor/counters.hpp has the value of that counter.

    Attributes:
        refused: Requests that were turned away, of every model and route.
        errors: Answers with an error.
        accepted: HTTP connections so far.
        recycled: Idle connections that were closed for others.
        accept_pauses: Times that no further connection could be held.
        lacked_descriptors: The accept pauses for lack of file descriptors. No metric: it decides what the log advises.
        lost_lines: Lines of the log and of the access log that were dropped.
        lost_spans: Spans that were dropped because the collector was slow.
        open: Open HTTP connections.
    """

    refused: Annotated[
        dict[str, int], Row("ksrv_refused_requests", labels=("protocol", "reason"))
    ] = {}
    errors: Annotated[dict[str, int], Row("ksrv_error_answers", labels=("protocol", "status"))] = {}
    accepted: Annotated[int, Row("ksrv_accepted_connections")] = 0
    recycled: Annotated[int, Row("ksrv_recycled_connections")] = 0
    accept_pauses: Annotated[int, Row("ksrv_accept_pauses")] = 0
    lacked_descriptors: int = 0
    lost_lines: Annotated[int, Row("ksrv_lost_log_lines")] = 0
    lost_spans: Annotated[int, Row("ksrv_lost_spans")] = 0
    open: Annotated[int, gauge("ksrv_connections")] = 0


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
    """Count an answer that is an error.

    Args:
        status: The HTTP status, or the name of the gRPC code.
    """
    with _lock:
        _errors[f"{protocol} {status}"] += 1


def counted_traffic(
    protocol: Protocol, counters: Mapping[str, int], errors: Mapping[Any, int]
) -> Traffic:
    """Return what a native server has counted.

    Args:
        counters: The server's counters.
        errors: How many answers were errors, by status.
    """
    return Traffic(
        {f"{protocol} {name}": counters[name] for name in REFUSALS},
        {f"{protocol} {status}": count for status, count in errors.items()},
        **{name: counters[name] for name in Traffic.__struct_fields__ if name in counters},
    )


def watch_connections(source: Callable[[], Traffic]) -> None:
    """Register a native server, whose counts are added to the counts of this process.

    Args:
        source: Returns the server's counts so far.
    """
    _sources.append(source)


def unwatch_connections(source: Callable[[], Traffic]) -> None:
    """Unregister a server that has stopped, and keep its counts.

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
        total = Traffic(dict(_refused), dict(_errors), lost_spans=lost_spans())
    for source in _sources:
        total.add(source(), lives=True)
    return total

"""The results of a load, as numbers, as JSON and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ksrv.bench.load import Load, Samples
from ksrv.client.tensors import Array

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)

BUSY_CLIENT = 0.85
"""If a load process uses more CPU cores than this, the load itself may be the limit."""


def percentile_name(percentile: float) -> str:
    """Return a percentile's name, such as "p99.9"."""
    return f"p{percentile:g}"


@dataclass
class Result:
    """The results of one load.

    Attributes:
        requests: How many requests were answered without an error.
        throughput: Requests a second that were answered without an error.
        latency_ms: Milliseconds: "mean", "max" and the percentiles.
        errors: How many requests failed, by status or kind.
        unsent: Requests of an open loop that were due but never sent, because all connections waited.
        under_way: Requests of a closed loop that were answered after the measured time.
        stalled: Whether a request under way waited longer than every request that was answered in time.
        client_cores: Cores that the load itself used.
        server_cores: Cores that the server used, if it runs on this machine.
        server_bytes: Memory of the server at the end, if it runs on this machine.
        batch_rows: Mean rows of the server's batches, if the server has statistics.
        milliseconds: Latency of each request, for a plot.
    """

    url: str
    loop: str
    connections: int
    rate: float | None
    seconds: float
    requests: int
    throughput: float
    rows_per_second: float
    latency_ms: dict[str, float]
    errors: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    unsent: int = 0
    under_way: int = 0
    stalled: bool = False
    client_cores: float = 0.0
    server_cores: float | None = None
    server_bytes: int | None = None
    batch_rows: float | None = None
    milliseconds: Array = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def failed(self) -> int:
        """How many requests failed."""
        return sum(self.errors.values())

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {name: value for name, value in vars(self).items() if name != "milliseconds"}


def result_of(url: str, load: Load, samples: Samples, rows: int) -> Result:
    """Compute the result of a load from its samples.

    Args:
        rows: Rows of each request.
    """
    # Requests without an answer in the measured time count with the time that they waited; see `Samples.waits`.
    milliseconds = np.concatenate([samples.latencies, samples.waits]) * 1e3
    answered, waited = len(samples.latencies), len(samples.waits)
    throughput = answered / samples.seconds if samples.seconds else 0.0
    latency: dict[str, float] = {}
    if len(milliseconds):
        latency["mean"] = float(milliseconds.mean())
        values = np.percentile(milliseconds, PERCENTILES, method="higher")
        latency |= {
            percentile_name(percent): float(value)
            for percent, value in zip(PERCENTILES, values, strict=True)
        }
        latency["max"] = float(milliseconds.max())
    closed = load.rate is None
    longest = samples.latencies.max(initial=0.0)
    return Result(
        url=url,
        loop="closed" if closed else "open",
        connections=load.connections,
        rate=load.rate,
        seconds=load.seconds,
        requests=answered,
        throughput=throughput,
        rows_per_second=throughput * rows,
        latency_ms=latency,
        errors=dict(samples.errors),
        first_error=samples.example,
        unsent=0 if closed else waited,
        under_way=waited if closed else 0,
        stalled=closed and bool((samples.waits > longest).any()),
        client_cores=samples.client_cpu / load.seconds if load.seconds else 0.0,
        milliseconds=milliseconds,
    )


def table(results: Sequence[Result]) -> str:
    """Return results as the lines of a table, with latencies in milliseconds."""
    names = ["p50", "p90", "p95", "p99", "p99.9", "max"]
    head = ["load", "req/s", "rows/s", *names, "errors", "batch", "server"]
    lines = [head]
    for result in results:
        load = f"{result.connections} conn" if result.rate is None else f"{result.rate:g}/s"
        scheme = result.url.partition(":")[0]
        server = "-"
        if result.server_cores is not None and result.server_bytes is not None:
            server = f"{result.server_cores:.2f} cores {result.server_bytes / (1 << 20):.0f} MiB"
        lines.append([
            f"{scheme} {load}",
            f"{result.throughput:.0f}" if result.throughput >= 100 else f"{result.throughput:.1f}",
            f"{result.rows_per_second:.0f}",
            *(_milliseconds(result.latency_ms.get(name)) for name in names),
            str(result.failed),
            "-" if result.batch_rows is None else f"{result.batch_rows:.1f}",
            server,
        ])  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(head) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def remarks(results: Sequence[Result], processes: int) -> list[str]:
    """Return warnings about results that may mislead."""
    lines = []
    if any(result.client_cores > BUSY_CLIENT * processes for result in results):
        lines.append(
            "the load itself took all of its CPU, so the server may be faster than shown: "
            f"try --processes {processes + 1}"
        )
    late = [result for result in results if result.unsent]
    if late:
        rates = ", ".join(f"{load.rate:g}/s" for load in late)
        lines.append(
            f"{rates}: requests could not be sent when they were due; they count in the latencies "
            f"with the time that they had waited until the end"
        )
    lines += [
        f"{result.connections} conn: {result.under_way} requests were still under way when the time ended, and "
        f"one of them took longer than all before; they count in the latencies with the time that they "
        f"took, but not in req/s"
        for result in results
        if result.stalled
    ]
    for result in results:
        if result.first_error:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in result.errors.items())
            lines.append(f"failed requests: {kinds}; the first: {result.first_error}")
            break
    return lines

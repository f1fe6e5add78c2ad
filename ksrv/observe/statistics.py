"""Counts and times of a model version: written by each instance's thread alone, summed when read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Note `count` occurrences that took `ns` nanoseconds together."""
        self.count += count
        self.ns += ns

    def merge(self, other: "Duration") -> None:
        """Add what another duration holds."""
        self.count += other.count
        self.ns += other.ns


@dataclass(slots=True)
class BatchStatistics:
    """What batches of one size cost."""

    batch_size: int
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ModelStatistics:
    """One model version's statistics, in the terms of the protocol's statistics extension.

    Attributes:
        last_inference_ms: Milliseconds since the epoch of the last answer; 0 for none.
        inference_count: Rows that were answered.
        execution_count: Batches that were run.
        success: Requests answered, from their arrival to their answer.
        fail: Requests that failed, refused and expired ones included.
        queue: How long requests waited.
        compute_input: Assembling and preprocessing, for each request.
        compute_infer: The inference stage, for each request.
        compute_output: Postprocessing, for each request.
        rejected: Refused requests by reason.
        expired: Requests whose deadline passed.
        cancelled: Requests that were cancelled.
        pending: Requests that wait now.
        restarts: How often executors were started anew.
        batches: The sizes formed.
    """

    name: str
    version: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    rejected: dict[str, int] = field(default_factory=dict)
    expired: int = 0
    cancelled: int = 0
    pending: int = 0
    restarts: int = 0
    batches: list[BatchStatistics] = field(default_factory=list)


class AnsweredTicket(Protocol):
    """What is counted of a request."""

    @property
    def enqueued_ns(self) -> int: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


class RunBatch(Protocol):
    """What is counted of a batch."""

    rows: int
    ran_ns: int
    ended_ms: int
    timings: dict[str, int]


class Tally:
    """The counts of one instance; only its thread writes, anybody reads."""

    def __init__(self) -> None:
        self._sum = ModelStatistics("", "")
        self._batches: dict[int, BatchStatistics] = {}

    def failed(self, count: int) -> None:
        """Note requests that failed before they reached a handler."""
        self._sum.fail.add(0, count)

    def batch(
        self,
        tickets: Sequence[AnsweredTicket],
        answers: Sequence[object],
        won: Sequence[bool],
        run: RunBatch,
    ) -> None:
        """Note a batch that was run.

        Args:
            tickets: Its requests.
            answers: Their answers; exceptions are failures.
            won: Whether each was answered now, rather than expired or cancelled before.
            run: The batch.
        """
        total = self._sum
        total.execution_count += 1
        total.last_inference_ms = run.ended_ms
        timings = run.timings
        taken_in = timings.get("assemble", 0) + timings.get("preprocess", 0)
        inferred = timings.get("inference", run.ran_ns)
        given_out = timings.get("postprocess", 0)
        served = 0
        for ticket, answer, mine in zip(tickets, answers, won, strict=True):
            if not mine:
                continue
            took = ticket.ended_ns - ticket.enqueued_ns
            if isinstance(answer, Exception):
                total.fail.add(took)
                continue
            served += 1
            total.success.add(took)
            total.queue.add(ticket.started_ns - ticket.enqueued_ns)
        total.inference_count += run.rows
        total.compute_input.add(taken_in * served, served)
        total.compute_infer.add(inferred * served, served)
        total.compute_output.add(given_out * served, served)
        sized = self._batches.get(run.rows)
        if sized is None:
            sized = BatchStatistics(run.rows)
            self._batches = {**self._batches, run.rows: sized}  # readers iterate over it
        sized.compute_input.add(taken_in)
        sized.compute_infer.add(inferred)
        sized.compute_output.add(given_out)


def total(
    name: str, version: str, tallies: Iterable[Tally], counts: Mapping[str, int]
) -> ModelStatistics:
    """Return the statistics of a model version.

    Args:
        name: The model's name.
        version: The version's name.
        tallies: Those of its instances.
        counts: What its queue counted: `full`, `bytes_in_flight`, `cancelled`, `expired_queued`,
            `expired_running`.
    """
    result = ModelStatistics(name, version)
    batches: dict[int, BatchStatistics] = {}
    for tally in tallies:
        one = tally._sum
        result.last_inference_ms = max(result.last_inference_ms, one.last_inference_ms)
        result.inference_count += one.inference_count
        result.execution_count += one.execution_count
        for part in (
            "success",
            "fail",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
        ):
            getattr(result, part).merge(getattr(one, part))
        for size, sized in tally._batches.items():
            mine = batches.setdefault(size, BatchStatistics(size))
            mine.compute_input.merge(sized.compute_input)
            mine.compute_infer.merge(sized.compute_infer)
            mine.compute_output.merge(sized.compute_output)
    result.batches = [batches[size] for size in sorted(batches)]
    result.rejected = {reason: counts[reason] for reason in ("full", "bytes_in_flight")}
    result.expired = counts["expired_queued"] + counts["expired_running"]
    result.cancelled = counts["cancelled"]
    result.fail.count += sum(result.rejected.values()) + result.expired + result.cancelled
    return result

# It relies on the GIL: attributes that are plain.
"""The inputs of a batch as an executor takes them, and the outputs that it answers with."""

cimport cython

if not cython.compiled:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ksrv._native.tensor.tensor import Tensor


cdef class BatchInputs:
    """The batch that the engine hands to an executor: tensors, and the requests they belong to.

    Args:
        tensors: Inputs by name; every first dimension is `rows` where the model batches.
        rows: The number of rows in the batch.
        requests: The requests in row order; their slices cover the rows without gaps.
        explain: Whether to explain rather than infer; a batch has one mode only.
        emit: Takes an intermediate answer while the batch runs; None where no client streams.

    Attributes:
        handles: The requests in the queue, in the process that has it; else None.
        beside_others: Whether the thread that hands on its calls of other models serves other
            batches too, and must not wait for them.
        inherited: What its calls of other models inherit, once it has made one; see
            `ksrv.engine.composition`.
    """

    tensors: dict[str, Tensor]
    requests: Sequence[Any]
    handles: list[Any] | None

    def __init__(
        self,
        dict tensors: dict[str, Tensor],
        Py_ssize_t rows,
        requests: Sequence[Any],
        bint explain=False,
        object emit=None,
    ):
        self.tensors = tensors
        self.rows = rows
        self.requests = requests
        self.explain = explain
        self.emit = emit

    def lengths(self) -> list[tuple[Mapping[str, int], int]]:
        """Return for each request the lengths of its rows without padding, and how many it has."""
        return [(one.lengths, one.rows) for one in self.requests]

    def __eq__(self, other):
        if not isinstance(other, BatchInputs):
            return NotImplemented
        return _inputs(self) == _inputs(other)

    def __repr__(self):
        return f"BatchInputs{_inputs(self)!r}"


cdef tuple _inputs(BatchInputs one):
    return one.tensors, one.rows, one.requests, one.explain, one.emit


@cython.final
@cython.freelist(16)
cdef class BatchOutputs:
    """The answer of an executor to a batch.

    Args:
        tensors: The outputs, first dimension `rows`, failed rows included.
        failures: The error of each request that failed, by its index in `BatchInputs.requests`.
        timings: Nanoseconds by stage.
        exclusive: Whether the holders of these arrays alone can reach their memory, so that
            they may be sent from where they lie.
        only: The requests that an intermediate answer is for; None for all of them.
        last: Whether the requests in `only` end with this intermediate answer.
        facts: What the dialect of a request reads beside its tensors, by request index.
        parts: Where requests have tensors of their own, which need not fit those of others: the
            first and the end of each request's in `tensors`, by request index. None where every
            tensor has a row for each row of the batch.
    """

    tensors: list[Tensor]
    only: frozenset[int] | None
    parts: dict[int, tuple[int, int]] | None

    def __init__(
        self,
        list tensors: list[Tensor],
        dict failures: dict[int, Any] | None = None,
        dict timings: dict[str, int] | None = None,
        dict headers: dict[int, dict[str, str]] | None = None,
        dict parameters: dict[int, dict[str, Any]] | None = None,
        bint exclusive=False,
        only: frozenset[int] | None = None,
        dict facts: dict[int, Any] | None = None,
        dict parts: dict[int, tuple[int, int]] | None = None,
        bint last=False,
    ):
        self.tensors = tensors
        self.failed = failures
        self.timings_by_stage = {} if timings is None else timings
        self.fields = headers
        self.extra = parameters
        self.exclusive = exclusive
        self.only = only
        self.dialect_facts = facts
        self.parts = parts
        self.last = last

    @property
    def timings(self) -> dict[str, int]:
        """Nanoseconds by stage."""
        if self.timings_by_stage is None:
            self.timings_by_stage = ksrv_timings(self.times)
        return self.timings_by_stage

    @timings.setter
    def timings(self, dict timings not None: dict[str, int]):
        self.timings_by_stage = timings

    @property
    def failures(self) -> dict[int, Any]:
        """The error of each request that failed, by its index in `BatchInputs.requests`."""
        if self.failed is None:
            self.failed = {}
        return self.failed

    @property
    def headers(self) -> dict[int, dict[str, str]]:
        """Response headers by request index."""
        if self.fields is None:
            self.fields = {}
        return self.fields

    @property
    def parameters(self) -> dict[int, dict[str, Any]]:
        """Response parameters by request index."""
        if self.extra is None:
            self.extra = {}
        return self.extra

    @property
    def facts(self) -> dict[int, Any]:
        """What the dialect of a request reads beside its tensors, by request index."""
        if self.dialect_facts is None:
            self.dialect_facts = {}
        return self.dialect_facts

    def add_notes(self, batch: Any) -> None:
        """Add what a handler noted for requests of its batch: failures, headers and parameters.

        Args:
            batch: The `ksrv.handlers.batch.Batch`.
        """
        self.failed = {**self.failed, **batch.failures} if self.failed else batch.failures
        self.fields = batch.headers
        self.extra = batch.parameters

    cdef bint is_bare(self) noexcept:
        return self.parts is None and not (
            self.failed or self.fields or self.extra or self.dialect_facts
        )

    def __eq__(self, other):
        if type(other) is not BatchOutputs:
            return NotImplemented
        return _outputs(self) == _outputs(other)

    def __repr__(self):
        return f"BatchOutputs{_outputs(self)!r}"


cdef tuple _outputs(BatchOutputs one):
    return (
        one.tensors, one.failures, one.timings, one.headers, one.parameters, one.exclusive,
        one.only, one.facts, one.parts,
    )


cdef dict ksrv_timings(const StageTimes &times):
    """Nanoseconds by stage, of the stages that were run."""
    cdef dict found = {}
    if times.preprocess != NOT_RUN:
        found["preprocess"] = times.preprocess
    if times.inference != NOT_RUN:
        found["inference"] = times.inference
    if times.postprocess != NOT_RUN:
        found["postprocess"] = times.postprocess
    return found


cdef BatchOutputs ksrv_batch_outputs(list tensors, StageTimes times, dict timings):
    """Make the answer to a batch in which nothing failed and nothing was added.

    `timings` holds the nanoseconds by stage where others than the default ones were timed; else
    None.
    """
    cdef BatchOutputs made = BatchOutputs.__new__(BatchOutputs)
    made.tensors = tensors
    made.times = times
    made.timings_by_stage = timings
    return made

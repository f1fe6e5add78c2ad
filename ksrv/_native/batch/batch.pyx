# Needs the GIL: attributes are plain, without locks.
"""The inputs of a batch that an executor runs, and the outputs that it returns.

An executor runs a handler in the worker or in a handler process; see `ksrv.engine.executor`.
"""

cimport cython

if not cython.compiled:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ksrv._native.tensor.tensor import Tensor


cdef class ExecutorInputs:
    """The batch that the engine passes to an executor: tensors, and their requests.

    Args:
        tensors: Inputs by name. Every first dimension is `rows` if the model batches.
        requests: The requests in row order; their slices cover the rows without gaps.
        explain: Whether to explain rather than infer. A batch never mixes the two.
        emit: Receives intermediate answers while the batch runs. None if no client streams.

    Attributes:
        handles: The requests in the queue. None outside of the process that has the queue.
        beside_others: Whether the thread that forwards calls to other models also serves other
            batches, so that it must not block.
        inherited: Set by the first call to another model, and passed on to all of them. See
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
        """Return, for each request, the lengths of its unpadded rows and how many rows it has."""
        return [(request.lengths, request.rows) for request in self.requests]


@cython.final
@cython.freelist(16)
cdef class ExecutorOutputs:
    """The answer of an executor to a batch.

    Args:
        tensors: The outputs. The first dimension is `rows`, including failed rows.
        failures: The error of each request that failed, by its index in `ExecutorInputs.requests`.
        timings: Nanoseconds by stage.
        headers: Response headers by request index.
        parameters: Response parameters by request index.
        exclusive: Whether nothing else refers to the memory of these arrays, so that they can be
            sent without a copy.
        only: Indexes of the requests that an intermediate answer is for. None for all requests.
        last: Whether the requests in `only` end with this intermediate answer.
        facts: Data that a request's dialect needs in addition to the tensors, by request index.
        parts: For each request index, the first and the end index of its entries in `tensors`. Used
            if requests have separate tensors, whose shapes need not match. None if every tensor has
            a row for each row of the batch.
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
        # The dicts of the properties are None until they are used, because most answers have
        # neither failures nor headers, parameters or facts; see `ksrv_batch_outputs`.
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
        """The error of each request that failed, by its index in `ExecutorInputs.requests`."""
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
        """Data that a request's dialect needs in addition to the tensors, by request index."""
        if self.dialect_facts is None:
            self.dialect_facts = {}
        return self.dialect_facts

    def add_notes(self, batch: Any) -> None:
        """Add the failures, headers and parameters that a handler set for requests of its batch.

        Failures are merged, because the reader of the outputs may have added some. Headers and
        parameters are only in the batch.

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


cdef dict ksrv_timings(const StageTimes &times):
    """Return the nanoseconds of each stage that ran."""
    cdef dict found = {}
    if times.preprocess != NOT_RUN:
        found["preprocess"] = times.preprocess
    if times.inference != NOT_RUN:
        found["inference"] = times.inference
    if times.postprocess != NOT_RUN:
        found["postprocess"] = times.postprocess
    return found


cdef ExecutorOutputs ksrv_batch_outputs(list tensors, StageTimes times, dict timings):
    """Make the answer to a batch without failures, headers or parameters.

    `timings` has the nanoseconds by stage if others than the default stages were timed, else it is
    None.
    """
    cdef ExecutorOutputs made = ExecutorOutputs.__new__(ExecutorOutputs)
    made.tensors = tensors
    made.times = times
    made.timings_by_stage = timings
    return made

# It relies on the GIL: attributes that are plain.
"""The inputs of a batch as an executor takes them, and the outputs that it answers with."""

cimport cython


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

    def __init__(self, dict tensors, Py_ssize_t rows, requests, bint explain=False, emit=None):
        self.tensors = tensors
        self.rows = rows
        self.requests = requests
        self.explain = explain
        self.emit = emit

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
        headers: Response headers by request index.
        parameters: Response parameters by request index.
        exclusive: Whether the holders of these arrays alone can reach their memory, so that
            they may be sent from where they lie.
        only: The requests that an intermediate answer is for; None for all of them.
        torchserve: The heads of answers on TorchServe's own routes, by request index.
    """

    def __init__(
        self, list tensors, dict failures=None, dict timings=None, dict headers=None,
        dict parameters=None, bint exclusive=False, only=None, dict torchserve=None
    ):
        self.tensors = tensors
        self.failures = {} if failures is None else failures
        self.timings = {} if timings is None else timings
        self.headers = {} if headers is None else headers
        self.parameters = {} if parameters is None else parameters
        self.exclusive = exclusive
        self.only = only
        self.torchserve = {} if torchserve is None else torchserve

    def __eq__(self, other):
        if type(other) is not BatchOutputs:
            return NotImplemented
        return _outputs(self) == _outputs(other)

    def __repr__(self):
        return f"BatchOutputs{_outputs(self)!r}"


cdef tuple _outputs(BatchOutputs one):
    return (
        one.tensors, one.failures, one.timings, one.headers, one.parameters, one.exclusive,
        one.only, one.torchserve,
    )


cdef BatchOutputs ksrv_batch_outputs(list tensors, dict timings):
    """Make the answer to a batch in which nothing failed and nothing was added."""
    cdef BatchOutputs made = BatchOutputs.__new__(BatchOutputs)
    made.tensors = tensors
    made.timings = timings
    made.failures = {}
    made.headers = {}
    made.parameters = {}
    made.torchserve = {}
    return made

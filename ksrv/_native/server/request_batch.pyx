# Needs the GIL, but releases it while rows are copied and decoded.
"""Batches of queued requests: their rows and their answers.

A `RequestBatch` goes through three steps, on the thread of an instance or of its prefetcher:

1. `add`: requests join the batch. Their images are decoded at once, so that a request with a bad
   image is answered alone, before the batch runs. The rows of several requests are copied into one
   block for each input (they are "joined"), but padded rows wait for step 2.
2. `prepare`: rows that are not joined yet are joined. This cannot fail, except for lack of memory.
   A single request keeps its arrays. Batches of `ksrv_new_batch` begin here: they have only
   fast-path requests without images, which need no `add`.
3. `reply`: small answers to fast-path requests are written to their connections here; all others
   are left to the model (`InstanceHost.answer`).

Rows are written by `RowWriter` (native/server/fast_rows.hpp). Fast-path requests need no Python for
each request or image. If the native decoder rejects an image, because it is damaged or unusual or
memory is short, the preparer of the input (`ksrv.images.preparer`) reads it. Requests that Python
parsed have arrays, which are copied in the same way.

A form describes the rows of an input: a tuple of (name, datatype, tail, padding, one, length), as
`RowForm` in ksrv/engine/batches/padding.py.
"""

cimport numpy as cnp
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
cimport cython
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove

from native.base.clock cimport now_ns
from native.images.image_input cimport EncodedImage
from native.infer.fast_request cimport FAST_OUTPUTS, RowSource, needs_padding
from native.memory.buffer_pool cimport BufferPool, count_copy as count_copied
from native.queue.request cimport Request as CRequest
from native.queue.stats cimport ReplyStage
from native.server.fast_path cimport FastRequest
from native.server.fast_response cimport (
    FastReply, ReplyPart, answer_batch, set_row_bytes,
)
from native.server.fast_rows cimport ImagePlace, PictureSize
from native.tensor.datatype cimport DT_INVALID, MAX_RANK as RANK_LIMIT, datatype_of, item_size_of

from ksrv._native.batch.batch cimport NOT_RUN, StageTimes
from ksrv._native.memory.buffer_pool cimport Block, ksrv_wrap
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.fast_images cimport FastImages
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.padding cimport WITHOUT_GIL_BYTES
from ksrv._native.tensor.tensor cimport Tensor, ksrv_tensor

from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES

if not cython.compiled:
    from collections.abc import Callable, Mapping
    from typing import Any

cnp.import_array()

cdef tuple DTYPES = DATATYPE_DTYPES

cdef extern from "base/small_vector.hpp" nogil:
    cdef cppclass Requests "ksrv::SmallVector<ksrv::Request *, 32>":
        CRequest **extend(size_t count) noexcept

    cdef cppclass Marks "ksrv::SmallVector<unsigned char, 32>":
        unsigned char *extend(size_t count) noexcept


@cython.final
cdef class RequestBatch(ExecutorInputs):
    """A batch of queued requests, which is also the input of an executor.

    Args:
        model: The `InstanceHost`, complete when the first batch is joined.
        lease: Returns a writable block of at least the given size.
        room: The most rows that the batch may grow to. Its blocks are leased for that many.

    Attributes:
        handles: The requests of the batch, in row order.
        rows: How many rows the batch has. 0 until requests were added or `inputs` was called.
        attempts: How many executors died while they ran the batch.
        spent_ns: How long joining the requests has taken.
        ran_ns: How long the executor took.
    """

    references: InputReferences | None
    handles: list[Any]

    def __init__(self, object model, lease: Callable[[int], Any], Py_ssize_t room=0):
        self.model = model
        self.lease = lease
        self.room = room
        self.handles = []

    def add(self, list handles not None: list[Any]) -> list[tuple[Any, Any]]:
        """Add requests with the same batch key.

        Returns:
            The requests that were not added because an image cannot be decoded, with their errors.
        """
        cdef int64_t began = now_ns()
        cdef bint joins = False
        cdef list failed = []
        cdef set dropped
        for handle in handles:
            joins = joins or ksrv_has_images(handle)
        self.handles.extend(handles)
        self.rows += _rows_of(handles)
        # Padded rows are joined last, when the longest row of the batch is known.
        if joins or (len(self.handles) > 1 and not _pads(self.handles[0])):
            failed = self._join()
            self.spent_ns += now_ns() - began
        if failed:
            dropped = {id(handle) for handle, _ in failed}
            self.keep([handle for handle in self.handles if id(handle) not in dropped])
        return failed

    def keep(self, list alive not None: list[Any]) -> None:
        """Drop the requests that are not in `alive`."""
        cdef set kept
        if len(alive) == len(self.handles):
            return
        if not alive:
            self.blocks = None
            self.joined = 0
        elif self.joined:
            kept = {id(handle) for handle in alive}
            joined = self.handles[:self.joined]
            _keep_rows(self, joined, kept)
            self.joined = 0
            for handle in joined:
                self.joined += id(handle) in kept
        self.handles = list(alive)
        self.rows = _rows_of(self.handles)

    cdef list _join(self):
        """See request_batch.pxd."""
        cdef list failed
        # Padded rows are joined again, because the longest row of the batch was not known before.
        if self.blocks is None or _pads(self.handles[0]):
            _begin_rows(self)
        failed = _add_rows(self, self.handles[self.joined:])
        self.joined = len(self.handles)
        return failed

    @property
    def requests(self) -> list[Any]:
        """The requests in row order, built on first use."""
        if self.read is None:
            self.read = self.model.read_requests(self.handles)
        return self.read

    def lengths(self) -> list[tuple[Mapping[str, int], int]]:
        """See `ExecutorInputs.lengths`. Builds no requests."""
        return [(handle.lengths, handle.rows) for handle in self.handles]

    def inputs(self) -> ExecutorInputs:
        """Join the rows and return the batch. The caller keeps it alive until `answer`."""
        self.prepare(True)
        return self

    cdef int prepare(self, bint counts_references) except -1:
        cdef int64_t began
        cdef bint fast = type(self.handles[0]) is FastHandle
        cdef dict received = None
        self.read = self.references = None
        if self.dispatched is not None:
            self.tensors = {}
            self.spent_ns = self.dispatched.assemble_ns
            return 0
        if not fast:
            received = self.model.begin(self)
        if (self.joined == 0 and len(self.handles) == 1
                and not _needs_padding(self.handles[0], self.model)):
            self.tensors = _received_tensors(self.handles[0]) if fast else received
            self.rows = (<NativeHandle>self.handles[0]).native.rows
        else:
            if self.joined < len(self.handles):
                began = now_ns()
                self.rows = _rows_of(self.handles)
                for _, error in self._join():
                    raise error
                self.spent_ns += now_ns() - began
            self.tensors = _joined_tensors(self, self.handles)
        if counts_references or not fast:
            self.references = InputReferences(list(self.tensors.values()))
        return 0

    def answer(
        self, ExecutorOutputs outputs not None, Queue queue not None, Stats stats not None, *,
        bint later
    ) -> None:
        """Answer the requests with the outputs of the batch, and count them.

        Args:
            queue: The queue that the requests came from.
            later: See `Queue.finish`. Small answers are written to their connections at once.
        """
        self.reply(outputs, queue, stats, later)

    cdef bint reply(self, ExecutorOutputs outputs, Queue queue, Stats stats, bint later) except -1:
        if (outputs.is_bare() and _are_fast(self.handles)
                and _reply(self, outputs, queue, stats)):
            return True
        self.model.answer(self, outputs, stats, later)
        return False


# ---- the requests -------------------------------------------------------------------------------


cdef FastRequest *_fast(handle) noexcept:
    return <FastRequest *>(<NativeHandle>handle).native


cdef bint ksrv_has_images(object handle) except -1:
    if type(handle) is FastHandle:
        return _fast(handle).layout.has_images()
    return bool(handle.request.images)


cdef bint _needs_padding(object handle, object model) except -1:
    """Whether padding changes this request's rows even if it is alone in its batch."""
    if type(handle) is FastHandle:
        return needs_padding(_fast(handle).signature[0], _fast(handle).layout)
    return len(handle.lengths) > 0 and model.padding.changes(handle.request)


cdef bint _pads(object handle) except -1:
    """Whether the model pads rows to the longest row of a batch."""
    if type(handle) is FastHandle:
        return _fast(handle).signature.lengths.get() != NULL
    return len(handle.lengths) > 0


cdef bint _are_fast(list handles) noexcept:
    """Whether all requests of a batch are fast-path requests."""
    for handle in handles:
        if type(handle) is not FastHandle:
            return False
    return True


cdef Py_ssize_t _rows_of(list handles) noexcept:
    cdef Py_ssize_t rows = 0
    for handle in handles:
        rows += (<NativeHandle>handle).native.rows
    return rows


cdef Tensor _tensor(handle, name):
    """Return an input of a request that Python parsed, or None if the request does not have it."""
    for tensor in handle.request.inputs:
        if (<Tensor?>tensor).name == name:
            return <Tensor>tensor
    return None


cdef RequestBatch ksrv_new_batch(object model, object lease, list handles):
    cdef RequestBatch made = RequestBatch.__new__(RequestBatch)
    made.model = model
    made.lease = lease
    made.handles = handles
    return made


# ---- the form of the rows -----------------------------------------------------------------------


cdef int _begin_rows(RequestBatch self) except -1:
    """Forget all rows, and take the form of the rows from the requests.

    Blocks are leased later, by `_reserve`.
    """
    cdef bint pads = _pads(self.handles[0])
    self.joined = 0
    self.endpoint = None
    self.count = self.row_length = self.largest = 0
    self.block_rows = <uint64_t>(self.rows if pads else max(self.room, self.rows))
    if not _use_endpoint(self, self.handles):
        # The tails of these forms have the padded sizes already, so `bytes_of_row` multiplies by 1.
        self.row_length = 1
        self.forms = [tuple(form) for form in self.model.padding.forms(self.handles)]
        self.parsed_signatures.clear()
        for form in self.forms:
            self.parsed_signatures.push_back(_signature(form))
        self.signatures = &self.parsed_signatures
    self.blocks = [None] * len(self.forms)
    return 0


cdef bint _use_endpoint(RequestBatch self, list handles) except -1:
    """Take the form of the rows from a fast-path request. Return whether `handles` has one."""
    for handle in handles:
        if type(handle) is FastHandle:
            self.endpoint = <ModelEndpoint>_fast(handle).signature.endpoint
            self.forms = self.endpoint.inputs
            self.signatures = &self.endpoint.signature.inputs
            return True
    return False


cdef InputSignature _signature(tuple form) except *:
    """Return the native form of an input of requests that Python parsed."""
    cdef InputSignature made
    _, datatype, tail, padding, one, _ = form  # as `RowForm`
    kind = (<str>datatype).encode()
    made.datatype = datatype_of(kind, <size_t>len(kind))
    made.row_bytes = item_size_of(made.datatype)
    made.padded = len(padding) > 0
    memcpy(made.padding, <const unsigned char *>(<bytes>padding), len(padding))
    memcpy(made.one, <const unsigned char *>(<bytes>one), len(one))
    if tail is None:  # its tensors are not copied
        made.datatype = DT_INVALID
        made.row_bytes = 0
        return made
    for size in tail:
        made.tail.push_back(size)
        made.row_bytes *= <uint64_t>size
    return made


# ---- joining rows in blocks ---------------------------------------------------------------------


cdef list _add_rows(RequestBatch self, list handles):
    """Copy or decode the rows of requests into the blocks, after the rows that are there.

    Returns:
        The requests whose images cannot be decoded, with their errors.
    """
    cdef RowWriter writer
    cdef vector[unsigned char *] targets  # the first new row of each input
    cdef uint64_t first = self.count
    cdef list arrays = []
    cdef bint images = False
    cdef Py_ssize_t i
    if self.endpoint is None:
        _use_endpoint(self, handles)
    # Collect the requests, then compute the sizes of their rows, which need the longest row.
    writer.begin(self.signatures[0])
    for handle in handles:
        if type(handle) is FastHandle:
            writer.add(_fast(handle)[0])
        else:
            images |= _add_parsed(self, writer, <NativeHandle>handle, arrays)
    if self.endpoint is not None and self.endpoint.signature.lengths.get() != NULL:
        self.row_length = self.endpoint.signature.lengths.get().padded(writer.row_length)
    writer.plan(self.row_length)
    if writer.missing.size():  # images of a new size
        ksrv_plan_images(self.endpoint, writer)
        writer.plan(self.row_length)
    # Copy and decode into the blocks.
    _reserve(self, max(first + writer.rows, self.largest))
    for i in range(len(self.blocks)):
        targets.push_back(_row(self, i, first))
    if writer.has_images() or writer.copied > WITHOUT_GIL_BYTES:
        with nogil:
            writer.write(targets.data())
    else:
        writer.write(targets.data())
    self.count = first + writer.rows
    if not writer.left.size() and not images:
        return []
    # Python decodes the rest: other formats, and JPEGs that the native decoder rejected.
    try:
        return _prepare_left(self, handles, first, writer.left, images)
    except BaseException:
        self.count = first  # the caller answers these requests; others may use their rows
        raise


cdef bint _add_parsed(
    RequestBatch self, RowWriter &writer, NativeHandle handle, list arrays
) except -1:
    """Add a request that Python parsed. Return whether it has encoded images.

    A source is `reserved_only` if the writer must not write its rows: because the input is not
    copied, is missing, or has images, which `_prepare_left` decodes. A padded input that is missing
    is a mask, which the writer generates.

    Args:
        arrays: Keeps the arrays whose memory the writer reads.
    """
    cdef RowSource *sources = writer.add(handle.native[0], handle.native.rows)
    cdef RowSource *source
    cdef const InputSignature *declared
    cdef cnp.ndarray array
    cdef bint images = False
    cdef Py_ssize_t i
    for i in range(len(self.forms)):
        source = &sources[i]
        declared = &self.signatures[0][<size_t>i]
        form = <tuple>self.forms[i]
        tensor = _tensor(handle, form[0])
        source.rows = handle.native.rows
        if declared.padded:
            # Needed for masks, and for `writer.row_length` if the forms are of an endpoint.
            source.row_length = handle.lengths.get(form[5], 0)
        if self.endpoint is not None:
            writer.row_length = max(writer.row_length, source.row_length)
        if declared.datatype == DT_INVALID:
            source.reserved_only = True
        elif tensor is None:
            source.reserved_only = not declared.padded
        elif isinstance(tensor.data, list):
            source.reserved_only = images = True
            source.rows = len(tensor.data)
        else:
            array = cnp.PyArray_GETCONTIGUOUS(tensor.data)
            if not _fits(declared[0], array, source.row_length):
                raise ValueError(f"the rows of {form[0]!r} do not fit the batch")
            arrays.append(array)
            source.data = <const unsigned char *>cnp.PyArray_DATA(array)
            source.tail = <const int64_t *>cnp.PyArray_DIMS(array) + 1
            source.rows = <uint64_t>cnp.PyArray_DIMS(array)[0]
        self.largest = max(self.largest, source.rows)
    return images


cdef bint _fits(const InputSignature &declared, cnp.ndarray array, uint64_t row_length) noexcept:
    """Whether the rows of an array have a size that the rows of the batch have room for."""
    cdef size_t i
    cdef int64_t size, room
    if (<size_t>cnp.PyArray_NDIM(array) != declared.tail.size() + 1
            or <size_t>cnp.PyArray_ITEMSIZE(array) != item_size_of(declared.datatype)):
        return False
    for i in range(declared.tail.size()):
        size = cnp.PyArray_DIMS(array)[i + 1]
        room = <int64_t>row_length if declared.tail[i] == -1 else declared.tail[i]
        if size > room or (size != room and not declared.padded):
            return False
    return True


cdef int _reserve(RequestBatch self, uint64_t rows) except -1:
    """Lease blocks for the batch's rows, or larger blocks for more rows."""
    cdef uint64_t row_bytes, room = max(self.block_rows, rows)
    cdef Py_ssize_t i
    cdef Block old, made
    for i in range(len(self.blocks)):
        old = self.blocks[i]
        if self.signatures[0][<size_t>i].datatype == DT_INVALID or (
            old is not None and room == self.block_rows
        ):
            continue
        row_bytes = self.signatures[0][<size_t>i].bytes_of_row(self.row_length)
        made = self.lease(min(max(<object>room * row_bytes, 1), PY_SSIZE_T_MAX))
        if old is not None:
            memcpy(made.block.data, old.block.data, self.count * row_bytes)
            count_copied(self.count * row_bytes)
        self.blocks[i] = made
    self.block_rows = room
    return 0


cdef unsigned char *_row(RequestBatch self, Py_ssize_t i, uint64_t row) noexcept:
    """Return the address of a row of input `i`, or NULL if the input is not copied."""
    if self.blocks[i] is None:
        return NULL
    return (
        (<Block>self.blocks[i]).block.data
        + row * self.signatures[0][<size_t>i].bytes_of_row(self.row_length)
    )


cdef int ksrv_plan_images(ModelEndpoint endpoint, RowWriter &writer) except -1:
    cdef PictureSize size
    for size in writer.missing:
        try:
            (<FastImages>endpoint.images[<Py_ssize_t>size.input]).plan(
                size.height, size.width, size.channels
            )
        except Exception:
            # Python decodes its pictures without a plan, so that only the faulty requests fail
            pass
    return 0


cdef list _prepare_left(
    RequestBatch self, list handles, uint64_t first, vector[ImagePlace] &left, bint parsed
):
    """Decode the images that the writer has not decoded. Return requests with errors.

    Args:
        first: The first row of `handles` in the blocks.
        left: The images of fast-path requests.
        parsed: Whether some of the requests were parsed by Python, whose images are all left.
    """
    cdef FastRequest *request
    cdef const EncodedImage *image
    cdef ImagePlace where
    cdef dict bad = {}
    cdef Py_ssize_t i
    for i in range(len(self.forms)):
        name = self.forms[i][0]
        elements, rows, numbers, owners, headers = [], [], [], [], []
        for where in left:
            if where.input != <size_t>i:
                continue
            handle = handles[<Py_ssize_t>where.request]
            request = _fast(handle)
            image = &request.layout.image(i, where.number)
            BufferPool.retain(request.block)
            file = memoryview(ksrv_wrap(request.block))
            start = request.body_offset + image.offset
            elements.append(file[start:start + image.length])
            rows.append(first + where.row)
            numbers.append(where.number)
            owners.append(handle)
            headers.append(None)
        row = first  # of the next request
        for handle in handles if parsed else ():
            tensor = None if type(handle) is FastHandle else _tensor(handle, name)
            if tensor is not None and name in self.model.images and isinstance(tensor.data, list):
                elements += tensor.data
                rows += range(row, row + len(tensor.data))
                numbers += range(len(tensor.data))
                owners += [handle] * len(tensor.data)
                headers += handle.request.images[name].headers
            row += handle.rows
        if not elements:
            continue
        out = _array(
            self.signatures[0][<size_t>i], self.block_rows, self.row_length, self.blocks[i], 0
        )
        errors = self.model.images[name].prepare(
            elements, out, rows, numbers, owners, headers
        )
        for handle, error in zip(owners, errors, strict=True):
            if error is not None:
                bad.setdefault(id(handle), (handle, error))
    return list(bad.values())


cdef int _keep_rows(RequestBatch self, list handles, set kept) except -1:
    """Drop the rows of requests that are not in `kept`. `handles` are all requests with rows."""
    cdef uint64_t first = 0, to = 0, nbytes
    cdef uint64_t rows
    cdef Py_ssize_t i
    for handle in handles:
        rows = (<NativeHandle>handle).native.rows
        if id(handle) in kept:
            for i in range(len(self.blocks) if first != to else 0):
                nbytes = rows * self.signatures[0][<size_t>i].bytes_of_row(self.row_length)
                if nbytes:
                    memmove(_row(self, i, to), _row(self, i, first), nbytes)
                count_copied(nbytes)
            to += rows
        first += rows
    self.count = to
    return 0


# ---- the tensors of the batch -------------------------------------------------------------------


cdef dict _received_tensors(object handle):
    """Return the tensors of a single fast-path request: views of its body."""
    cdef FastRequest *request = _fast(handle)
    cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
    cdef dict found = {}
    cdef size_t i
    BufferPool.retain(request.block)
    block = ksrv_wrap(request.block)
    for i in range(request.signature.inputs.size()):
        _add_input(
            found, <tuple>endpoint.inputs[<Py_ssize_t>i], request.signature.inputs[i],
            request.rows, request.layout.row_length, block,
            request.body_offset + request.layout.offsets[i],
        )
    return found


cdef dict _joined_tensors(RequestBatch self, list handles):
    """Return the tensors of the joined rows, by input."""
    cdef dict found = {}
    cdef bint parsed = type(handles[0]) is not FastHandle
    cdef uint64_t rows
    cdef Py_ssize_t i
    for i in range(len(self.forms)):
        form = <tuple>self.forms[i]
        rows = self.count
        if parsed and (len(handles) == 1 or self.blocks[i] is None):
            tensor = _tensor(handles[0], form[0])
            if tensor is not None and self.blocks[i] is None:  # not copied, such as texts
                found[form[0]] = _elements(tensor, handles, rows)
                continue
            if tensor is not None:
                # The first dimension of an input that is not batched is not the number of rows.
                rows = tensor.shape[0]
        _add_input(
            found, form, self.signatures[0][<size_t>i], rows, self.row_length, self.blocks[i],
            0,
        )
    return found


cdef Tensor _elements(Tensor first, list handles, uint64_t rows):
    """Return an input of a batch whose tensors are not copied: the elements of all requests."""
    cdef list elements = []
    if len(handles) == 1:
        return first
    for handle in handles:
        elements += _tensor(handle, first.name).data
    return ksrv_tensor(first.name, first.datatype, (rows,) + first.shape[1:], elements)


cdef int _add_input(
    dict found, tuple form, const InputSignature &declared, uint64_t rows, uint64_t row_length,
    Block block, uint64_t offset
) except -1:
    """Add the tensor of an input whose rows are in a block. `form`: see `ModelEndpoint.inputs`."""
    cdef cnp.ndarray array = _array(declared, rows, row_length, block, offset)
    cdef object name = form[0], tail = form[2]
    if rows == 1 and len(form) > 6:
        shape = form[6]  # made once for each model, because most requests have one row
    elif declared.padded:
        shape = (<object>array).shape
    else:
        shape = (rows,) + <tuple>tail
    found[name] = ksrv_tensor(name, form[1], shape, array)
    return 0


cdef cnp.ndarray _array(
    const InputSignature &declared, uint64_t rows, uint64_t row_length, Block block,
    uint64_t offset
):
    """Return rows in a block as an array, which keeps the block alive."""
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef size_t i
    sizes[0] = <cnp.npy_intp>rows
    for i in range(declared.tail.size()):
        sizes[i + 1] = <int64_t>row_length if declared.tail[i] == -1 else declared.tail[i]
    return new_array(
        DTYPES[<int>declared.datatype], <int>declared.tail.size() + 1, sizes,
        block.block.data + offset, block,
    )


# ---- small answers ------------------------------------------------------------------------------


cdef struct Parts:
    # The outputs of a batch. The memory belongs to arrays that the caller keeps alive.
    ReplyPart parts[FAST_OUTPUTS]
    int count


cdef bint _reply(RequestBatch batch, ExecutorOutputs outputs, Queue queue, Stats stats) except -1:
    """If the answers of a batch are small, send and count them.

    Returns:
        Whether requests were answered, except for expired requests; see `answer_batch`.
    """
    cdef Parts parts
    cdef ReplyStage stages[STAGES]
    cdef FastReply reply
    cdef uint64_t rows = 0
    cdef size_t i, count = <size_t>len(batch.handles)
    cdef Requests requests_room
    cdef Marks won_room
    cdef CRequest **requests = requests_room.extend(count)
    cdef unsigned char *won = won_room.extend(count)
    if requests == NULL or won == NULL:
        raise MemoryError
    for i in range(count):
        requests[i] = (<NativeHandle>batch.handles[i]).native
        rows += requests[i].rows
    parts.count = 0
    for tensor in outputs.tensors:
        if not _add_part(&parts, <Tensor?>tensor, rows, count == 1):
            return False
    reply.parts = parts.parts
    reply.part_count = parts.count
    reply.stages = stages
    reply.stage_count = ksrv_stages(stages, batch, outputs)
    reply.ran_ns = <uint64_t>batch.ran_ns
    return reply.stage_count < STAGES and answer_batch(
        queue.queue, &stats.sums, requests, count, won, reply
    )


cdef bint _add_part(Parts *parts, Tensor tensor, uint64_t rows, bint alone) except -1:
    """Add an output. False if it cannot be divided into rows without a copy."""
    cdef ReplyPart *part = &parts.parts[parts.count]
    cdef Py_ssize_t length = 0
    cdef object data = tensor.data
    cdef cnp.ndarray array
    if parts.count == FAST_OUTPUTS or tensor.its_parameters or not cnp.PyArray_CheckExact(data):
        return False
    array = <cnp.ndarray>data
    if not cnp.PyArray_IS_C_CONTIGUOUS(array) or not cnp.PyArray_ISNOTSWAPPED(array):
        return False
    parts.count += 1
    part.data = <const unsigned char *>cnp.PyArray_DATA(array)
    part.shape = <const ptrdiff_t *>cnp.PyArray_DIMS(array)
    part.rank = cnp.PyArray_NDIM(array)
    if not set_row_bytes(part, <uint64_t>cnp.PyArray_NBYTES(array), rows, alone):
        return False
    part.name = PyUnicode_AsUTF8AndSize(tensor.name, &length)
    part.name_length = <size_t>length
    part.datatype = PyUnicode_AsUTF8AndSize(tensor.datatype, &length)
    part.datatype_length = <size_t>length
    part.type = datatype_of(part.datatype, part.datatype_length)
    return item_size_of(part.type) == <size_t>cnp.PyArray_ITEMSIZE(array)


cdef int ksrv_stages(ReplyStage *stages, RequestBatch batch, ExecutorOutputs outputs) except -1:
    cdef const StageTimes *times = &outputs.times
    cdef const char *text
    cdef Py_ssize_t length = 0
    cdef int count = 1
    _put_stage(&stages[0], b"assemble", 8, batch.spent_ns)
    if outputs.timings_by_stage is None:
        if times.preprocess != NOT_RUN:
            _put_stage(&stages[count], b"preprocess", 10, times.preprocess)
            count += 1
        if times.inference != NOT_RUN:
            _put_stage(&stages[count], b"inference", 9, times.inference)
            count += 1
        if times.postprocess != NOT_RUN:
            _put_stage(&stages[count], b"postprocess", 11, times.postprocess)
            count += 1
        return count
    for name, nanoseconds in outputs.timings_by_stage.items():
        text = PyUnicode_AsUTF8AndSize(name, &length)
        _put_stage(&stages[count], text, <size_t>length, nanoseconds)
        count += 1
        if count == STAGES:
            break
    return count


cdef void _put_stage(
    ReplyStage *stage, const char *name, size_t length, uint64_t nanoseconds
) noexcept:
    stage.name = name
    stage.length = length
    stage.nanoseconds = nanoseconds

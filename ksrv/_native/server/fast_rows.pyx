# It relies on the GIL, which is released while rows are copied and decoded.
"""The rows of fast-path requests that are joined: copied, or decoded, once into one block.

There is no Python for each request or image, but where the native decoder leaves an image: a
damaged or unusual one, or one for which there is no memory. The preparer of its input looks at it
then.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove
from libcpp.vector cimport vector

cimport cython
cimport numpy as cnp

from ksrv._native.images.decode_memory cimport process_decode_memory
from ksrv._native.images.decode_pool cimport CDecodePool
from ksrv._native.images.jpeg_decoder cimport Decoded
from ksrv._native.memory.buffer_pool cimport Block, count_copied, ksrv_wrap, retain_block
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.images.jpeg_batch cimport BatchedJpeg, RowPlan, decode_jpegs
from ksrv._native.server.fast_images cimport EncodedImage, FastImages
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.server.server cimport (
    FastRequest, InputSignature, ModelSignature, copy_rows, needs_padding,
)
from ksrv._native.tensor.datatype cimport RANK_LIMIT
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.padding cimport WITHOUT_GIL_BYTES
from ksrv._native.tensor.tensor cimport ksrv_tensor

cnp.import_array()


cdef struct RowCopy:
    FastRequest *request
    size_t input
    unsigned char *target


cdef struct Place:
    # Where an image lies: the request among those that are added, the input, the image among the
    # request's, and its row.
    size_t request
    size_t input
    size_t number
    size_t row


cdef FastRequest *_fast(handle) noexcept:
    return <FastRequest *>(<NativeHandle>handle).native


cdef bint ksrv_has_images(object handle) noexcept:
    return _fast(handle).layout.has_images()


cdef bint ksrv_needs_padding(object handle) noexcept:
    cdef FastRequest *request = _fast(handle)
    return needs_padding(request.signature[0], request.layout)


cdef bint ksrv_pads(object handle) noexcept:
    return _fast(handle).signature.lengths.get() != NULL


cdef FastRows ksrv_fast_rows(ModelEndpoint endpoint, object lease, uint64_t room):
    cdef FastRows made = FastRows.__new__(FastRows)
    made.endpoint = endpoint
    made.lease = lease
    made.room = room
    return made


cdef dict ksrv_received_tensors(object handle):
    cdef FastRequest *request = _fast(handle)
    cdef dict found = {}
    cdef size_t i
    retain_block(request.block)
    block = ksrv_wrap(request.block)
    for i in range(request.signature.inputs.size()):
        _add_input(
            found, <ModelEndpoint>request.signature.endpoint, i, request.rows,
            request.layout.row_length, block, request.body_offset + request.layout.offsets[i],
        )
    return found


cdef cnp.ndarray _array(
    ModelEndpoint endpoint, size_t place, uint64_t rows, uint64_t row_length, Block block,
    uint64_t offset
):
    cdef InputSignature *declared = &endpoint.signature.inputs[place]
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef size_t i
    dtype = (<tuple>endpoint.inputs[place])[2]
    sizes[0] = <cnp.npy_intp>rows
    for i in range(declared.tail.size()):
        sizes[i + 1] = <int64_t>row_length if declared.tail[i] == -1 else declared.tail[i]
    array = new_array(
        dtype, <int>declared.tail.size() + 1, sizes, block.block.data + offset,
        cnp.NPY_ARRAY_WRITEABLE,
    )
    Py_INCREF(block)  # which the array takes
    cnp.PyArray_SetBaseObject(array, block)
    return array


cdef int _add_input(
    dict found, ModelEndpoint endpoint, size_t place, uint64_t rows, uint64_t row_length,
    Block block, uint64_t offset
) except -1:
    cdef cnp.ndarray array = _array(endpoint, place, rows, row_length, block, offset)
    name, datatype, _, tail, shape_of_one = <tuple>endpoint.inputs[place]
    if endpoint.signature.inputs[place].padded:
        shape = (<object>array).shape
    else:
        shape = shape_of_one if rows == 1 else (rows,) + <tuple>tail
    found[name] = ksrv_tensor(name, datatype, shape, array)
    return 0


cdef void _fill(
    CDecodePool *pool, vector[RowCopy] &copies, uint64_t row_length, vector[BatchedJpeg] &jpegs
) noexcept nogil:
    cdef size_t i
    cdef FastRequest *request
    for i in range(copies.size()):
        request = copies[i].request
        copy_rows(
            request.signature.inputs[copies[i].input], request.layout, request.body(),
            copies[i].input, row_length, copies[i].target
        )
    if jpegs.size():
        decode_jpegs(pool[0], process_decode_memory(), jpegs.data(), jpegs.size())


cdef int _reserve(FastRows self, uint64_t rows) except -1:
    """Lease a block for the room that the batch has, or a larger one for more rows."""
    cdef ModelSignature *signature = self.endpoint.signature
    cdef uint64_t starts[FAST_INPUTS]
    cdef uint64_t total = 0, nbytes, room = max(self.room, rows)
    cdef Block old = self.block
    cdef size_t i
    if old is not None and rows <= self.room:
        return 0
    for i in range(signature.inputs.size()):
        starts[i] = total
        nbytes = room * signature.inputs[i].bytes_of_row(self.row_length)
        total += (nbytes + 63) & ~<uint64_t>63
    self.block = self.lease(total)
    self.room = room
    for i in range(signature.inputs.size()):
        if old is not None:
            nbytes = self.count * signature.inputs[i].bytes_of_row(self.row_length)
            memcpy(self.block.block.data + starts[i], old.block.data + self.starts[i], nbytes)
            count_copied(nbytes)
        self.starts[i] = starts[i]
    return 0


cdef unsigned char *_row(FastRows self, size_t place, uint64_t row) noexcept:
    return (
        self.block.block.data + self.starts[place]
        + row * self.endpoint.signature.inputs[place].bytes_of_row(self.row_length)
    )


cdef int _plan(
    FastRows self, handle, size_t place, size_t index, uint64_t row, vector[BatchedJpeg] &jpegs,
    vector[Place] &decoded, vector[Place] &left
) except -1:
    """Note how each image of one input of a request is decoded."""
    cdef FastRequest *request = _fast(handle)
    cdef FastImages images = <FastImages>self.endpoint.images[place]
    cdef EncodedImage *one
    cdef BatchedJpeg *job
    cdef Place where
    cdef RowPlan plan
    cdef size_t i
    where.request = index
    where.input = place
    for i in range(request.rows):
        one = &request.layout.images[place].get()[i]
        where.number = i
        where.row = row + i
        plan = images.plans.plan(one.height, one.width, one.channels)
        if plan is None:
            left.push_back(where)
            continue
        jpegs.resize(jpegs.size() + 1)
        job = &jpegs.back()
        # It refers to the preparer's own conversion, so that the plan may go.
        plan.fill(job, request.body() + one.offset, one.length, _row(self, place, row + i))
        job.decode_ns = one.decode_ns
        job.decoder_bytes = one.decoder_bytes
        job.orientation = one.orientation
        job.ended = &request.done
        decoded.push_back(where)
    return 0


cdef list _prepare_left(FastRows self, list handles, vector[Place] &left):
    """Have Python decode the images that are left; return requests with errors."""
    cdef ModelSignature *signature = self.endpoint.signature
    cdef FastRequest *request
    cdef EncodedImage *one
    cdef Place where
    cdef dict bad = {}
    cdef size_t i, k
    for i in range(signature.inputs.size()):
        elements, rows, numbers, owners = [], [], [], []
        for k in range(left.size()):
            where = left[k]
            if where.input != i:
                continue
            handle = handles[where.request]
            request = _fast(handle)
            one = &request.layout.images[i].get()[where.number]
            retain_block(request.block)
            file = memoryview(ksrv_wrap(request.block))
            start = request.body_offset + one.offset
            elements.append(file[start:start + one.length])
            rows.append(where.row)
            numbers.append(where.number)
            owners.append(handle)
        if not elements:
            continue
        out = _array(self.endpoint, i, self.count, self.row_length, self.block, self.starts[i])
        images = <FastImages>self.endpoint.images[i]
        errors = images.prepare_left(elements, out, rows, numbers, owners)
        for handle, error in zip(owners, errors, strict=True):
            if error is not None:
                bad.setdefault(id(handle), (handle, error))
    return list(bad.values())


@cython.final
cdef class FastRows:
    """The rows of the requests that a batch has joined so far."""

    cdef list add(self, list handles):
        cdef ModelSignature *signature = self.endpoint.signature
        cdef vector[RowCopy] copies
        cdef vector[BatchedJpeg] jpegs
        cdef vector[Place] decoded, left
        cdef CDecodePool *pool = NULL
        cdef FastRequest *request
        cdef RowCopy copy
        cdef uint64_t rows = 0, nbytes = 0
        cdef size_t i, k
        for handle in handles:
            request = _fast(handle)
            rows += request.rows
            self.row_length = max(self.row_length, request.layout.row_length)
        if signature.lengths.get() != NULL:
            self.row_length = signature.lengths.get().padded(self.row_length)
        _reserve(self, self.count + rows)
        for i in range(signature.inputs.size()):
            rows = self.count
            for k in range(<size_t>len(handles)):
                request = _fast(handles[k])
                if request.layout.images[i]:
                    pool = (<FastImages>self.endpoint.images[i]).pool.pool
                    _plan(self, handles[k], i, k, rows, jpegs, decoded, left)
                else:
                    copy.request = request
                    copy.input = i
                    copy.target = _row(self, i, rows)
                    copies.push_back(copy)
                    nbytes += request.rows * signature.inputs[i].bytes_of_row(self.row_length)
                rows += request.rows
        if jpegs.size() or nbytes > WITHOUT_GIL_BYTES:
            with nogil:
                _fill(pool, copies, self.row_length, jpegs)
        else:
            _fill(pool, copies, self.row_length, jpegs)
        count_copied(nbytes)
        self.count = rows
        for k in range(jpegs.size()):
            # The preparer tells an image whose request has ended as well.
            if jpegs[k].passed_over or jpegs[k].result != Decoded.whole:
                left.push_back(decoded[k])
        return _prepare_left(self, handles, left) if left.size() else []

    cdef int keep(self, list handles, set kept) except -1:
        cdef ModelSignature *signature = self.endpoint.signature
        cdef uint64_t first = 0, to = 0, nbytes
        cdef FastRequest *request
        cdef size_t i
        for handle in handles:
            request = _fast(handle)
            if id(handle) in kept:
                for i in range(signature.inputs.size() if first != to else 0):
                    nbytes = request.rows * signature.inputs[i].bytes_of_row(self.row_length)
                    memmove(_row(self, i, to), _row(self, i, first), nbytes)
                    count_copied(nbytes)
                to += request.rows
            first += request.rows
        self.count = to
        return 0

    cdef dict tensors(self):
        cdef dict found = {}
        cdef size_t i
        for i in range(self.endpoint.signature.inputs.size()):
            _add_input(
                found, self.endpoint, i, self.count, self.row_length, self.block, self.starts[i]
            )
        return found

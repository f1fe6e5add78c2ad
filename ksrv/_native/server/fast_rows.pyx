# Needs the GIL, but releases it while rows are copied and decoded.
"""The rows of fast-path requests, copied or decoded once into the block of a batch.

No Python runs for each request or image, unless the native decoder rejects an image, because it is
damaged or unusual or memory is short. The preparer of the input then reads the image.
"""

from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove
from libcpp.vector cimport vector

cimport cython
cimport numpy as cnp

from ksrv._native.memory.buffer_pool cimport Block, count_copied, ksrv_wrap, retain_block
from ksrv._native.queue.request_handle cimport CRequest, NativeHandle
from ksrv._native.server.fast_images cimport EncodedImage, FastImages
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.server.server cimport (
    FAST_INPUTS, FastRequest, InputSignature, ModelSignature, needs_padding,
)
from ksrv._native.tensor.datatype cimport RANK_LIMIT
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.padding cimport WITHOUT_GIL_BYTES
from ksrv._native.tensor.tensor cimport ksrv_tensor

cnp.import_array()


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
    Py_INCREF(block)  # the array takes over this reference
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


cdef int ksrv_plan_images(ModelEndpoint endpoint, RowWriter &writer) except -1:
    cdef PictureSize size
    for size in writer.missing:
        try:
            (<FastImages>endpoint.images[<Py_ssize_t>size.input]).plans.find(
                size.height, size.width, size.channels
            )
        except Exception:
            # Python decodes its pictures without a plan, so that only the faulty requests fail
            pass
    return 0


cdef int _reserve(FastRows self, uint64_t rows) except -1:
    """Lease a block for the batch's rows, or a larger block for more rows."""
    cdef ModelSignature *signature = self.endpoint.signature
    cdef size_t starts[FAST_INPUTS]
    cdef size_t nbytes
    cdef uint64_t room = max(self.room, rows)
    cdef Block old = self.block
    cdef size_t i
    if old is not None and rows <= self.room:
        return 0
    self.block = self.lease(
        place_inputs(signature[0], room, self.row_length, <size_t>PY_SSIZE_T_MAX, starts)
    )
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


cdef list _prepare_left(FastRows self, list handles, uint64_t first, vector[ImagePlace] &left):
    """Decode the remaining images with Python. Return requests with errors."""
    cdef FastRequest *request
    cdef EncodedImage *one
    cdef ImagePlace where
    cdef dict bad = {}
    cdef size_t i
    for i in range(self.endpoint.signature.inputs.size()):
        elements, rows, numbers, owners = [], [], [], []
        for where in left:
            if where.input != i:
                continue
            handle = handles[<Py_ssize_t>where.request]
            request = _fast(handle)
            one = &request.layout.images[i].get()[where.number]
            retain_block(request.block)
            file = memoryview(ksrv_wrap(request.block))
            start = request.body_offset + one.offset
            elements.append(file[start:start + one.length])
            rows.append(first + where.row)
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
        cdef RowWriter writer
        cdef Requests requests_room
        cdef uint64_t first = self.count
        cdef size_t i, count = <size_t>len(handles)
        cdef CRequest **requests = requests_room.extend(count)
        if requests == NULL:
            raise MemoryError
        for i in range(count):
            requests[i] = (<NativeHandle>handles[i]).native
        if not writer.read(requests, count, self.row_length):
            raise MemoryError
        if writer.missing.size():
            ksrv_plan_images(self.endpoint, writer)
            if not writer.read(requests, count, self.row_length):
                raise MemoryError
        self.row_length = writer.row_length
        _reserve(self, first + writer.rows)
        if writer.has_images() or writer.copied > WITHOUT_GIL_BYTES:
            with nogil:
                writer.write(self.block.block.data, self.starts, first)
        else:
            writer.write(self.block.block.data, self.starts, first)
        self.count = first + writer.rows
        if not writer.left.size():
            return []
        try:
            return _prepare_left(self, handles, first, writer.left)
        except BaseException:
            self.count = first  # the requests are answered, and others reuse these rows
            raise

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

# Needs the GIL, but releases it while rows are copied and decoded.
"""The rows of requests, copied or decoded once into the blocks of a batch.

Fast-path requests need no Python for each request or image, unless the native decoder rejects an
image, because it is damaged or unusual or memory is short. The preparer of the input then reads the
image. Requests that Python parsed have arrays, which are copied in the same way.
"""

cimport numpy as cnp
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_INCREF
cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

from native.images.image_input cimport EncodedImage
from native.infer.fast_request cimport RowSource, needs_padding
from native.memory.buffer_pool cimport BufferPool, count_copy as count_copied
from native.server.fast_path cimport FastRequest
from native.server.fast_rows cimport ImagePlace, PictureSize
from native.tensor.datatype cimport DT_INVALID, MAX_RANK as RANK_LIMIT, datatype_of, item_size_of

from ksrv._native.memory.buffer_pool cimport Block, ksrv_wrap
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.fast_images cimport FastImages
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.padding cimport WITHOUT_GIL_BYTES
from ksrv._native.tensor.tensor cimport Tensor, ksrv_tensor

from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES

cnp.import_array()

cdef tuple DTYPES = DATATYPE_DTYPES


cdef FastRequest *_fast(handle) noexcept:
    return <FastRequest *>(<NativeHandle>handle).native


cdef bint ksrv_has_images(object handle) except -1:
    if type(handle) is FastHandle:
        return _fast(handle).layout.has_images()
    return bool(handle.request.images)


cdef bint ksrv_needs_padding(object handle, object model) except -1:
    if type(handle) is FastHandle:
        return needs_padding(_fast(handle).signature[0], _fast(handle).layout)
    return len(handle.lengths) > 0 and model.padding.changes(handle.request)


cdef bint ksrv_pads(object handle) except -1:
    if type(handle) is FastHandle:
        return _fast(handle).signature.lengths.get() != NULL
    return len(handle.lengths) > 0


cdef JoinedRows ksrv_joined_rows(object model, object lease, list handles, uint64_t room):
    cdef JoinedRows made = JoinedRows.__new__(JoinedRows)
    made.model = model
    made.lease = lease
    made.room = room
    if not _use_endpoint(made, handles):
        made.row_length = 1  # the forms have the padded sizes already
        made.inputs = [tuple(form) for form in model.padding.forms(handles)]
        for form in made.inputs:
            made.parsed_signatures.push_back(_signature(form))
        made.signatures = &made.parsed_signatures
    made.blocks = [None] * len(made.inputs)
    return made


cdef bint _use_endpoint(JoinedRows self, list handles) except -1:
    """Take the form of the rows from a fast-path request. Return whether `handles` has one."""
    for handle in handles:
        if type(handle) is FastHandle:
            self.endpoint = <ModelEndpoint>_fast(handle).signature.endpoint
            self.inputs = self.endpoint.inputs
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


cdef dict ksrv_received_tensors(object handle):
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


cdef cnp.ndarray _array(
    const InputSignature &declared, uint64_t rows, uint64_t row_length, Block block,
    uint64_t offset
):
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef size_t i
    sizes[0] = <cnp.npy_intp>rows
    for i in range(declared.tail.size()):
        sizes[i + 1] = <int64_t>row_length if declared.tail[i] == -1 else declared.tail[i]
    array = new_array(
        DTYPES[<int>declared.datatype], <int>declared.tail.size() + 1, sizes,
        block.block.data + offset, cnp.NPY_ARRAY_WRITEABLE,
    )
    Py_INCREF(block)  # the array takes over this reference
    cnp.PyArray_SetBaseObject(array, block)
    return array


cdef int _add_input(
    dict found, tuple form, const InputSignature &declared, uint64_t rows, uint64_t row_length,
    Block block, uint64_t offset
) except -1:
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


cdef Tensor _tensor(handle, name):
    """Return an input of a request that Python parsed, or None if the request does not have it."""
    for tensor in handle.request.inputs:
        if (<Tensor?>tensor).name == name:
            return <Tensor>tensor
    return None


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


cdef bint _add_parsed(
    JoinedRows self, RowWriter &writer, NativeHandle handle, list arrays
) except -1:
    """Add a request that Python parsed. Return whether it has encoded images.

    Args:
        arrays: Keeps the arrays whose memory the writer reads.
    """
    cdef RowSource *sources = writer.add(handle.native[0], handle.native.rows)
    cdef RowSource *source
    cdef const InputSignature *declared
    cdef cnp.ndarray array
    cdef bint images = False
    cdef Py_ssize_t i
    for i in range(len(self.inputs)):
        source = &sources[i]
        declared = &self.signatures[0][<size_t>i]
        form = <tuple>self.inputs[i]
        tensor = _tensor(handle, form[0])
        source.rows = handle.native.rows
        if declared.padded:
            source.row_length = handle.lengths.get(form[5], 0)
        if self.endpoint is not None:
            writer.row_length = max(writer.row_length, source.row_length)
        if declared.datatype == DT_INVALID:
            source.apart = True
        elif tensor is None:
            source.apart = not declared.padded
        elif isinstance(tensor.data, list):
            source.apart = images = True
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


cdef int _reserve(JoinedRows self, uint64_t rows) except -1:
    """Lease blocks for the batch's rows, or larger blocks for more rows."""
    cdef uint64_t row_bytes, room = max(self.room, rows)
    cdef Py_ssize_t i
    cdef Block old, made
    for i in range(len(self.blocks)):
        old = self.blocks[i]
        if self.signatures[0][<size_t>i].datatype == DT_INVALID or (
            old is not None and room == self.room
        ):
            continue
        row_bytes = self.signatures[0][<size_t>i].bytes_of_row(self.row_length)
        made = self.lease(min(max(<object>room * row_bytes, 1), PY_SSIZE_T_MAX))
        if old is not None:
            memcpy(made.block.data, old.block.data, self.count * row_bytes)
            count_copied(self.count * row_bytes)
        self.blocks[i] = made
    self.room = room
    return 0


cdef unsigned char *_row(JoinedRows self, Py_ssize_t i, uint64_t row) noexcept:
    """Return the address of a row of input `i`, or NULL if the input is not copied."""
    if self.blocks[i] is None:
        return NULL
    return (
        (<Block>self.blocks[i]).block.data
        + row * self.signatures[0][<size_t>i].bytes_of_row(self.row_length)
    )


cdef list _prepare_left(
    JoinedRows self, list handles, uint64_t first, vector[ImagePlace] &left, bint parsed
):
    """Decode the remaining images with Python. Return requests with errors.

    Args:
        parsed: Whether some of the requests were parsed by Python. Else all JPEGs were tried row by
            row.
    """
    cdef FastRequest *request
    cdef const EncodedImage *image
    cdef ImagePlace where
    cdef dict bad = {}
    cdef Py_ssize_t i
    for i in range(len(self.inputs)):
        name = self.inputs[i][0]
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
        row = first
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
            self.signatures[0][<size_t>i], self.room, self.row_length, self.blocks[i], 0
        )
        errors = self.model.images[name].prepare(
            elements, out, rows, numbers, owners, headers
        )
        for handle, error in zip(owners, errors, strict=True):
            if error is not None:
                bad.setdefault(id(handle), (handle, error))
    return list(bad.values())


@cython.final
cdef class JoinedRows:
    """The rows of the requests that a batch has joined so far."""

    cdef list add(self, list handles):
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
        if writer.missing.size():
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
            self.count = first  # the requests are answered, and others reuse these rows
            raise

    cdef int keep(self, list handles, set kept) except -1:
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

    cdef dict tensors(self, list handles):
        cdef dict found = {}
        cdef bint parsed = type(handles[0]) is not FastHandle
        cdef uint64_t rows
        cdef Py_ssize_t i
        for i in range(len(self.inputs)):
            form = <tuple>self.inputs[i]
            rows = self.count
            if parsed and (len(handles) == 1 or self.blocks[i] is None):
                tensor = _tensor(handles[0], form[0])
                if tensor is not None and self.blocks[i] is None:
                    found[form[0]] = _elements(tensor, handles, rows)
                    continue
                if tensor is not None:
                    rows = tensor.shape[0]  # an input without rows may have more than the request
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

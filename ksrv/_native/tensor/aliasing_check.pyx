# Needs the GIL: without the GIL, reference counts have another meaning.
"""Finds the outputs that can be sent without a copy: nothing else can reach their memory.

An output is copied unless both conditions are proven:

- The memory belongs to an array that owns its data, to a block of the buffer pool, or to a storage
that torch allocated. For any other owner (a DLPack capsule, a memoryview, an object with
`__array_interface__`) other writers may exist.
- Every reference to the owner, and to each array between the owner and the output, is accounted
for. It belongs to the outputs, or it existed before the handler ran (`InputReferences`), because a
handler may return its input. No weak references exist, because reference counts do not include
them.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
cimport cython

from ksrv._native.memory.buffer_pool import Block
from ksrv.torch_interop import TorchMemory

if not cython.compiled:
    from ksrv._native.tensor.tensor import Tensor

cnp.import_array()


cdef extern from "Python.h":
    # Takes a pointer, because a conversion to an object would itself count as a reference.
    Py_ssize_t Py_REFCNT(PyObject *thing) noexcept
    PyObject *PyList_GET_ITEM(PyObject *listed, Py_ssize_t index) noexcept
    # The list is NULL if the object has no weak references. Requires a type that supports them.
    bint PyType_SUPPORTS_WEAKREFS(type kind) noexcept
    PyObject **PyObject_GET_WEAKREFS_LISTPTR(PyObject *thing) noexcept


cdef inline object _identity(object thing):
    """Return `id(thing)` without its audit event.

    `ksrv.handlers.imports.own_writes` listens to audit events, and would be called for each.
    """
    return <size_t><PyObject *>thing


cdef inline bint _weakly_held(object thing) noexcept:
    return (
        PyType_SUPPORTS_WEAKREFS(type(thing))
        and PyObject_GET_WEAKREFS_LISTPTR(<PyObject *>thing)[0] != NULL
    )


cdef inline Py_ssize_t _references(list objects, Py_ssize_t index) noexcept:
    """The references to an object of a list, including the reference of the list."""
    return Py_REFCNT(PyList_GET_ITEM(<PyObject *>objects, index))


cdef list _chain(object array):
    """The array and its bases, up to the owner of the memory."""
    cdef list chain = [array]
    while cnp.PyArray_CheckExact(array) and array.base is not None:
        array = array.base
        chain.append(array)
    return chain


cdef class InputReferences:
    """The references to the inputs of a batch, counted before the handler runs.

    Args:
        tensors: The inputs. They are stored, so that their references do not change.
    """

    cdef list tensors
    cdef list objects  # the arrays, their bases and owners
    cdef dict counted  # the references to each, by its `id`

    def __init__(self, list tensors not None: list[Tensor]):
        cdef dict place = {}
        cdef Py_ssize_t i
        cdef object tensor, link
        self.tensors = tensors
        self.objects = []
        for tensor in tensors:
            if isinstance(tensor.data, cnp.ndarray):
                for link in _chain(tensor.data):
                    if place.setdefault(_identity(link), len(self.objects)) == len(self.objects):
                        self.objects.append(link)
        tensor = link = None  # local variables would count as references
        self.counted = {key: _references(self.objects, i) for key, i in place.items()}


def unshared(list tensors not None: list[Tensor], InputReferences before=None) -> list[bool]:
    """Return for each output whether its memory can be reached only through these outputs.

    Args:
        tensors: The outputs; each holds its array, or a list of elements, in `data`.
        before: The references of the batch's inputs. None if inputs must not be sent without a
            copy.

    Returns:
        True for each tensor that can be sent without a copy. Always true for elements, because
        `bytes` are immutable.
    """
    cdef object tensor, data
    # The common case: the array owns its memory, and only the tensor and `data` refer to it.
    for tensor in tensors:
        data = tensor.data
        if not _owns_alone(data) and type(data) is not list:
            break
    else:
        return [True] * len(tensors)
    tensor = data = None  # local variables would count as references
    return _proven(tensors, before)


cdef inline bint _owns_alone(object data) noexcept:
    # Two references: the caller's variable and the tensor. A cdef argument adds none.
    return (
        cnp.PyArray_CheckExact(data)
        and cnp.PyArray_CHKFLAGS(data, cnp.NPY_ARRAY_OWNDATA)
        and Py_REFCNT(<PyObject *>data) == 2
        and not _weakly_held(data)
    )


cdef list _proven(list tensors, InputReferences before):
    """As `unshared`, for arrays of any form: compare all references with the expected number."""
    cdef list chains = []    # for each tensor, the indexes of its chain in `objects`
    cdef list objects = []   # the objects of the inputs first
    cdef dict place = {}     # index in `objects`, by `id`
    cdef list expected = []  # references to each object that are accounted for
    # Arrays whose reference to their base is counted in `expected`: outputs may have bases in
    # common.
    cdef set children = set()
    cdef set reached = set()  # the objects that others can reach
    cdef list own
    cdef Py_ssize_t i, inputs = 0
    cdef object tensor, link, key, child
    if before is not None:
        inputs = len(before.objects)
        for link in before.objects:
            place[_identity(link)] = len(objects)
            objects.append(link)
            expected.append(before.counted[_identity(link)] + 1)  # and by `objects`
    for tensor in tensors:
        own = []
        chains.append(own)
        child = None
        for link in [] if type(tensor.data) is list else _chain(tensor.data):
            key = _identity(link)
            if key not in place:
                place[key] = len(objects)
                objects.append(link)
                expected.append(1)  # by `objects`
            i = place[key]
            own.append(i)
            if child is None:
                expected[i] += 1  # by the tensor
            elif child >= inputs and child not in children:
                children.add(child)
                expected[i] += 1  # by an array which did not exist before the handler ran
            child = i
    tensor = link = None
    for i in range(len(objects)):
        if _references(objects, i) != expected[i]:
            reached.add(i)
    reached.update([i for i, link in enumerate(objects) if _weakly_held(link)])
    link = None
    if not reached.isdisjoint(range(inputs)):
        reached.update(range(inputs))  # all inputs, because they may share one block of memory
    return [
        not own or (reached.isdisjoint(own) and _is_known(objects[own[len(own) - 1]]))
        for own in chains
    ]


cdef bint _is_known(object owner) except -1:
    """Whether the owner's memory can be reached only through references to the owner."""
    if cnp.PyArray_CheckExact(owner):
        return cnp.PyArray_CHKFLAGS(owner, cnp.NPY_ARRAY_OWNDATA)
    if type(owner) is Block:
        return True
    return type(owner) is TorchMemory and owner.is_exclusive()

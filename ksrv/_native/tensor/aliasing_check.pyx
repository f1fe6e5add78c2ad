# It relies on the GIL: it reads reference counts, which mean something else without the GIL.
"""Tells whether memory has other holders that can write to it, by counting references.

An answer may be sent from where the handler left it only where no other object holds the array or
anything it is a view of. Such a chain runs from an array over its bases to the object that owns the
memory. How the batch's own inputs were referred to before the handler ran is known (`counts`); so a
handler that answers with its input, and keeps nothing, is found as well.

Memory of `bytes` never changes. An owner of a kind that is not known here is
taken for shared, and so is a torch tensor over a batch's input: its own reference to the input
looks like a reference that the handler keeps.
"""

from cpython.object cimport PyObject

from numpy import may_share_memory, ndarray

from ksrv._native.memory.buffer_pool import Block
from ksrv.imported_torch import imported_torch


cdef extern from "Python.h":
    # On pointers, because a conversion to an object would itself count as a reference.
    Py_ssize_t Py_REFCNT(PyObject *thing) noexcept
    PyObject *PyList_GET_ITEM(PyObject *listed, Py_ssize_t index) noexcept


cdef inline Py_ssize_t _held(list objects, Py_ssize_t index) noexcept:
    """The references to an object of a list, other than the list's own."""
    return Py_REFCNT(PyList_GET_ITEM(<PyObject *>objects, index)) - 1


cdef inline object _id(list objects, Py_ssize_t index):
    return <size_t>PyList_GET_ITEM(<PyObject *>objects, index)


cdef list _chain(object array):
    """The array and its bases, down to the owner of the memory."""
    cdef list chain = []
    while array is not None:
        chain.append(array)
        array = array.base if isinstance(array, ndarray) else None
    return chain


def counts(list arrays not None) -> dict:
    """Count the references to some arrays and their bases.

    Args:
        arrays: The inputs of a batch that is about to run.

    Returns:
        The references by `id`, for `unshared`.
    """
    cdef dict found = {}
    cdef list objects = []
    cdef Py_ssize_t i
    cdef object array, one
    for array in arrays:
        for one in _chain(array):
            if found.setdefault(id(one), len(objects)) == len(objects):
                objects.append(one)
    array = one = None
    for i in range(len(objects)):
        found[_id(objects, i)] = _held(objects, i)
    return found


def unshared(list tensors not None, dict before not None, list inputs not None) -> list:
    """Tell which outputs have no reference but that of their tensors.

    Args:
        tensors: The outputs; each holds its array, or a list, in `data`.
        before: What `counts` returned for `inputs`.
        inputs: The arrays of the batch's inputs, which `before` counted with this list alive.

    Returns:
        For each tensor whether its memory can be written through the tensor only.
    """
    cdef object tensor, data
    # The common case: the array owns its memory, and only the tensor and `data` refer to it.
    for tensor in tensors:
        data = tensor.data
        if isinstance(data, ndarray) and (data.base is not None or Py_REFCNT(<PyObject *>data) > 2):
            break
    else:
        return [True] * len(tensors)
    tensor = data = None
    return _unshared(tensors, before, inputs)


cdef list _unshared(list tensors, dict before, list inputs):
    cdef list chains = []
    cdef list objects = []
    cdef dict place = {}
    cdef list own = []  # references by the outputs themselves, in the order of `objects`
    cdef set counted = set()
    cdef list shared = []
    cdef Py_ssize_t i
    cdef object tensor, data, one, key, child
    for tensor in tensors:
        data = tensor.data
        places = []
        chains.append(places)
        if not isinstance(data, ndarray):
            continue
        child = None
        for one in _chain(data):
            key = id(one)
            if key not in place:
                place[key] = len(objects)
                objects.append(one)
                own.append(0)
            i = place[key]
            places.append(i)
            if child is None:
                own[i] += 1  # the tensor's
            elif child not in before and child not in counted:
                counted.add(child)
                own[i] += 1  # that of an array which did not exist before the handler ran
            child = key
    tensor = data = one = None
    for i in range(len(objects)):
        shared.append(_held(objects, i) > own[i] + before.get(_id(objects, i), 0))
    return [
        not places or _free(tensors[i].data, objects[places[len(places) - 1]],
                            any([shared[n] for n in places]), before, inputs)
        for i, places in enumerate(chains)
    ]


cdef bint _free(object data, object owner, bint shared, dict before, list inputs):
    cdef object kind = type(owner)
    if kind is bytes or (kind is memoryview and owner.readonly and type(owner.obj) is bytes):
        return True
    if shared:
        return False
    if isinstance(owner, ndarray) or kind is Block or id(owner) in before:
        return True
    if kind.__name__ == "PyCapsule":
        return True
    return _is_own_tensor(owner) and not any([may_share_memory(data, one) for one in inputs])


cdef bint _is_own_tensor(object owner):
    """Whether an array's base is a torch tensor with memory that no other tensor refers to."""
    cdef object torch = imported_torch()
    if torch is None or not isinstance(owner, torch.Tensor):
        return False
    # The count holds the tensor itself and the storage object that is asked here.
    return torch._C._storage_Use_Count(owner.untyped_storage()._cdata) <= 2

"""Arrays of a datatype, over existing or new memory. Callers must `import_array` first."""

cimport numpy as cnp
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF


cdef extern from "numpy/arrayobject.h":
    PyTypeObject PyArray_Type
    cnp.ndarray PyArray_NewFromDescr(
        PyTypeObject *subtype, cnp.dtype descr, int rank, const cnp.npy_intp *sizes,
        const cnp.npy_intp *strides, void *data, int flags, PyObject *like
    )


cdef inline cnp.ndarray new_array(
    object dtype, int rank, const cnp.npy_intp *sizes, void *data=NULL, object owner=None
):
    """Return a contiguous array: of uninitialized memory, or over `data`, which `owner` owns."""
    cdef int flags = 0 if owner is None else cnp.NPY_ARRAY_WRITEABLE
    Py_INCREF(dtype)  # the array takes over this reference
    array = PyArray_NewFromDescr(
        &PyArray_Type, <cnp.dtype>dtype, rank, sizes, NULL, data, flags, NULL
    )
    if owner is not None:
        Py_INCREF(owner)  # likewise
        cnp.PyArray_SetBaseObject(array, owner)
    return array

# Safe without the GIL: objects do not change after construction.
# cython: freethreading_compatible = True
"""A fast reader for handler results that have exactly the form that the model declares.

Results of any other form (a tensor, a list, an array to be cast or copied) are left to
`ksrv.handlers.outputs`, which also writes the error texts.
"""

cimport cython

from ksrv._native.tensor.tensor cimport ksrv_tensor

if not cython.compiled:
    from typing import Any

    import numpy as np

    from ksrv._native.tensor.tensor import Tensor

cnp.import_array()


@cython.final
cdef class DeclaredOutputs:
    """The outputs of a model, if their dimensions after the first are all fixed.

    Args:
        outputs: For each output its name, datatype, dtype and the dimensions after the first.
    """

    def __cinit__(
        self,
        list outputs not None: list[tuple[str, str, np.dtype[Any], tuple[int, ...]]],
    ):
        cdef vector[int64_t] sizes
        self.names = []
        self.datatypes = []
        self.dtypes = []
        self.shapes_of_one = []
        for name, kind, dtype, tail in outputs:
            self.names.append(name)
            self.datatypes.append(kind)
            self.dtypes.append(dtype)
            self.shapes_of_one.append((1, *tail))
            sizes.clear()
            for size in tail:
                sizes.push_back(size)
            self.tails.push_back(sizes)

    def read(self, object result, int64_t rows) -> list[Tensor] | None:
        """Return the tensors of a result that has exactly the declared form.

        Returns:
            The tensors in the declared order, or None if the result has another form.
        """
        return self.tensors(result, rows)

    cdef list tensors(self, object result, int64_t rows):
        cdef Py_ssize_t i, count = len(self.names)
        cdef bint bare = cnp.PyArray_CheckExact(result)
        cdef list tensors
        if bare:
            if count != 1:
                return None
        elif type(result) is not dict or len(<dict>result) != count:
            return None
        tensors = []
        for i in range(count):
            name = self.names[i]
            value = result if bare else (<dict>result).get(name)
            if not cnp.PyArray_CheckExact(value) or not self.fits(<cnp.ndarray>value, i, rows):
                return None
            shape = self.shapes_of_one[i] if rows == 1 else value.shape
            tensors.append(ksrv_tensor(name, self.datatypes[i], shape, value))
        return tensors

    cdef bint fits(self, cnp.ndarray array, Py_ssize_t place, int64_t rows) noexcept:
        """Whether an array has the form of the output with the index `place`."""
        cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(array)
        cdef size_t i, rank = <size_t>cnp.PyArray_NDIM(array)
        cdef vector[int64_t] *tail = &self.tails[<size_t>place]
        # Equal dtypes are nearly always the same object. Other arrays are read by Python.
        if <object>cnp.PyArray_DESCR(array) is not <object>self.dtypes[place]:
            return False
        if rank != tail.size() + 1 or shape[0] != rows or not cnp.PyArray_IS_C_CONTIGUOUS(array):
            return False
        for i in range(tail.size()):
            if shape[i + 1] != tail[0][i]:
                return False
        return True

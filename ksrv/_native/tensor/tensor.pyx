# Needs the GIL: attributes are plain, without locks.
"""A named tensor: the part of requests, batches and answers."""

cimport cython

if not cython.compiled:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt


@cython.final
@cython.freelist(64)
cdef class Tensor:
    """A named tensor.

    Args:
        datatype: A KServe v2 datatype name.
        data: A C-ordered array of `shape` (for BF16 uint16 bit patterns). For BYTES the flat list
            of elements in row-major order.
        parameters: The tensor's parameters, without the parameters that describe its wire form.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | list[bytes | memoryview]

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        data: npt.NDArray[Any] | list[bytes | memoryview],
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ):
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data
        self.its_parameters = parameters

    @property
    def parameters(self) -> Mapping[str, bool | int | float | str]:
        """The tensor's parameters, without the parameters that describe its wire form."""
        if self.its_parameters is None:
            self.its_parameters = {}
        return self.its_parameters

    @parameters.setter
    def parameters(self, parameters: Mapping[str, bool | int | float | str]):
        self.its_parameters = parameters

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the tensor refers to."""
        if isinstance(self.data, list):
            return sum([len(element) for element in self.data])
        return int(self.data.nbytes)

    def rows(self, Py_ssize_t start, Py_ssize_t end) -> Tensor:
        """Return some rows of the tensor, without a copy. The first dimension counts the rows.

        Args:
            start: The first row.
            end: The row after the last.
        """
        cdef Py_ssize_t width = 1
        if isinstance(self.data, list):
            for size in self.shape[1:]:
                width *= size
        cdef Tensor part = ksrv_tensor(
            self.name, self.datatype, (end - start, *self.shape[1:]),
            self.data[start * width : end * width],
        )
        part.its_parameters = self.its_parameters
        return part

    def __eq__(self, other):
        if type(other) is not Tensor:
            return NotImplemented
        return _fields(self) == _fields(other)

    def __repr__(self):
        return (
            f"Tensor(name={self.name!r}, datatype={self.datatype!r}, shape={self.shape!r}, "
            f"data={self.data!r}, parameters={self.parameters!r})"
        )


cdef tuple _fields(Tensor tensor):
    return tensor.name, tensor.datatype, tensor.shape, tensor.data, tensor.parameters


cdef Tensor ksrv_tensor(object name, object datatype, object shape, object data):
    """Make a tensor without parameters."""
    cdef Tensor made = Tensor.__new__(Tensor)
    made.name = name
    made.datatype = datatype
    made.shape = shape
    made.data = data
    return made

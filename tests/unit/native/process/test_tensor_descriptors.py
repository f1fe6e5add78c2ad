"""Tensors that their owner changes while they are copied into shared blocks."""

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.process import tensor_descriptors
from ksrv._native.process.shared_blocks import ExportedBlocks, ImportedBlocks
from ksrv.request import Tensor

LENT = 1 << 20


@pytest.fixture
def body():
    buffer_pool.configure(lendable_above=LENT - 1)
    yield memoryview(buffer_pool.lease_body(LENT))
    buffer_pool.configure(lendable_above=(1 << 64) - 1)


def write_while(change, elements):
    """Write elements that change after they were first read."""

    class Later:
        name, datatype, shape = "later", "BYTES", (0,)

        @property
        def data(self):
            change()
            return []

    first = Tensor("first", "BYTES", (len(elements),), elements)
    return tensor_descriptors.write([first, Later()], ExportedBlocks())


def test_growing_element_is_detected(body):
    grows = bytearray(10)
    with pytest.raises(ValueError, match="grew while it was copied"):
        write_while(lambda: grows.extend(bytes(16)), [grows, body])  # what a reference takes


def test_elements_added_during_the_copy_are_not_written():
    elements = [b"a", b"bc"]
    written, blocks = write_while(lambda: elements.extend([b""] * 1000), elements)
    assert blocks == []
    (first, _), rest = tensor_descriptors.read(written, ImportedBlocks())
    assert first == ("BYTES", (2,), [b"a", b"bc"])
    assert rest == len(written)


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((1,) * 48, np.float32),
        np.zeros((2, 3) + (1,) * 46, np.float32).T,
        np.zeros((2, 3) + (1,) * 31, np.float32).T,
    ],
    ids=["C order", "transposed", "one too many"],
)
def test_array_of_too_many_dimensions_is_refused(data):
    tensor = Tensor("x", "FP32", data.shape, data)
    with pytest.raises(TypeError, match=rf"'x' has {data.ndim} dimensions, and at most 32"):
        tensor_descriptors.write([tensor], ExportedBlocks())


def test_list_of_too_many_dimensions_is_refused():
    tensor = Tensor("x", "BYTES", (1,) * 33, [b"a"])
    with pytest.raises(TypeError, match="'x' has 33 dimensions, and at most 32"):
        tensor_descriptors.write([tensor], ExportedBlocks())

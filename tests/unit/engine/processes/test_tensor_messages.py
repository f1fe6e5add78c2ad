"""Tensors in messages: what cannot be written, and elements that their owner changes."""

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.processes.link import Frame, Link
from ksrv.engine.processes.tensor_messages import DIRECT_BLOCKS, TensorWriter, read_tensors
from ksrv.request import Tensor


def written(*tensors):
    writer = TensorWriter(Link.pair()[0])
    return writer.write(tensors), writer.blocks


def test_elements_added_during_the_copy_are_not_written():
    elements = [b"a", bytearray(b"bc")]
    (made,), blocks = written(Tensor("x", "BYTES", (2,), elements))
    elements[1] += b"d"
    elements.append(b"e")
    (read,) = read_tensors([made], Frame(1, 1, b""))
    assert (read.shape, read.data, blocks) == ((2,), [b"a", b"bc"], [])


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
    with pytest.raises(TypeError, match=rf"'x' has {data.ndim} dimensions, and at most 32"):
        written(Tensor("x", "FP32", data.shape, data))


def test_list_of_too_many_dimensions_is_refused():
    with pytest.raises(TypeError, match="'x' has 33 dimensions, and at most 32"):
        written(Tensor("x", "BYTES", (1,) * 33, [b"a"]))


@pytest.mark.parametrize("count", [DIRECT_BLOCKS - 1, DIRECT_BLOCKS, DIRECT_BLOCKS + 1, 70])
def test_arrays_in_many_blocks(count):
    blocks = [buffer_pool.share(8192) for _ in range(count)]
    arrays = [buffer_pool.array(block, np.dtype(np.float32), (1, 2048), 0) for block in blocks]
    for number, array in enumerate(arrays):
        array[:] = number
    tensors = [
        Tensor(f"x{number}", "FP32", array.shape, array) for number, array in enumerate(arrays)
    ]
    # Arrays of no block are copied into one block more.
    tensors.append(Tensor("last", "FP32", (1, 65536), np.ones((1, 65536), np.float32)))
    made, named = written(*tensors)
    assert len(named) == min(count, DIRECT_BLOCKS) + 1
    kinds = np.dtype(np.float32)
    values = [
        np.frombuffer(data, kinds)
        if isinstance(data, bytes)  # a small array that found no block is in the message itself
        else buffer_pool.array(named[data.block], kinds, (2,), data.offset)
        for data in (one.data for one in made)
    ]
    assert [value[1] for value in values] == [*range(count), 1]

"""Tensors in messages: what cannot be written, and elements that their owner changes."""

import numpy as np
import pytest

from ksrv.engine.processes.link import Frame, Link
from ksrv.engine.processes.tensor_messages import TensorWriter, read_tensors
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

"""Rows of requests over KServe v2, as a handler of TorchServe gets them."""

from ksrv.dialects.torchserve.runner.rows import kserve_rows
from ksrv.request import ExecutorInputs, RequestPart, Tensor


def test_texts_of_rows_without_elements_are_empty_rows():
    inputs = ExecutorInputs(
        {
            "none": Tensor("none", "BYTES", (3, 0), []),
            "word": Tensor("word", "BYTES", (3,), [b"a", b"b", b"c"]),
        },
        3,
        [RequestPart(slice(0, 2)), RequestPart(slice(2, 3))],
    )
    assert kserve_rows(inputs) == [
        (0, {"none": [], "word": b"a"}),
        (0, {"none": [], "word": b"b"}),
        (1, {"none": [], "word": b"c"}),
    ]
    del inputs.tensors["word"]
    assert kserve_rows(inputs) == [(0, []), (0, []), (1, [])]

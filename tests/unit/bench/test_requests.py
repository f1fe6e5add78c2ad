"""The requests of a load."""

import os
import pickle
import socket

import numpy as np
import pytest

from ksrv.bench.host import server_processes, usage
from ksrv.bench.requests import operations_of, rows_of


def metadata(*inputs):
    return {
        "name": "m",
        "inputs": [
            {"name": name, "datatype": datatype, "shape": list(shape)}
            for name, datatype, shape in inputs
        ],
    }


def test_values_are_made_in_the_declared_shapes():
    found = metadata(
        ("a", "FP32", (-1, 4, -1)), ("b", "BYTES", (-1,)), ("c", "BOOL", (2,)), ("d", "BF16", (-1,))
    )
    (operation,) = operations_of(found, "1", [], 3, {})
    assert [(one.datatype, one.shape) for one in operation.inputs] == [
        ("FP32", (3, 4, 8)), ("BYTES", (3,)), ("BOOL", (2,)), ("BF16", (3,))
    ]  # fmt: skip
    assert operation.version == "1" and rows_of(operation) == 3
    assert operation.inputs[0].nbytes == 3 * 4 * 8 * 4
    assert pickle.loads(pickle.dumps(operation)) == operation
    (shaped,) = operations_of(found, "", [], 1, {"a": (2, 4, 16)})
    assert shaped.inputs[0].shape == (2, 4, 16)


def test_files_are_sent_in_turn(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(name.encode())
    files = [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]
    found = operations_of(metadata(("x", "FP32", (-1, 8, 8, 3))), "", files, 2, {})
    assert len(found) == 2
    assert found[0].inputs[0].shape == (2,) and b"a.jpg" in found[0].inputs[0].blocks[0]


def test_named_files_are_values_of_one_request(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 4)))
    found = metadata(("x", "FP32", (-1, 4)), ("y", "FP32", (-1, 2)))
    (operation,) = operations_of(found, "", [f"x={tmp_path / 'x.npy'}"], 5, {})
    assert {one.name: one.shape for one in operation.inputs} == {"x": (5, 4), "y": (5, 2)}
    (undeclared,) = operations_of(metadata(), "", [f"z={tmp_path / 'x.npy'}"], 1, {})
    assert undeclared.inputs[0].datatype == "FP64"


@pytest.mark.parametrize(
    ("inputs", "files", "shapes", "text"),
    [
        ((), [], {}, "declares no inputs"),
        ((("x", "FP32", (-1,)), ("y", "FP32", (-1,))), ["f"], {}, "NAME=FILE"),
        ((("x", "FP32", (-1,)),), [], {"z": (1,)}, "no input 'z'"),
    ],
)
def test_invalid_files_and_shapes_are_errors(inputs, files, shapes, text):
    with pytest.raises(ValueError, match=text):
        operations_of(metadata(*inputs), "", files, 1, shapes)


def test_missing_process_has_no_usage():
    assert usage([]) is None
    assert server_processes(1) == []


def test_listener_is_found_beside_a_descriptor_that_closes_meanwhile(monkeypatch):
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["1000000000", *listed(path)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert os.getpid() in server_processes(listener.getsockname()[1])

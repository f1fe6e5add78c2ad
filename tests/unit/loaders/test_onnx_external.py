"""An ONNX file's external data stays inside the model's folder."""

import numpy as np
import pytest

from ksrv.loaders.loaded import ModelLoadError
from ksrv.loaders.onnx_external import check_external_data

onnx = pytest.importorskip("onnx")


def save(folder, location):
    """A model with one weight in the file `location`."""
    from onnx import TensorProto, helper

    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [4], np.zeros(4, np.float32).tobytes(), True
    )
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    value = helper.make_tensor_value_info
    inner = helper.make_graph([], "inner", [], [], [weight])
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        "g",
        [value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [4])],
    )
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_data_file_next_to_the_model_is_accepted(tmp_path):
    path = save(tmp_path / "m", "weights/w.bin")
    (tmp_path / "m/weights").mkdir()
    (tmp_path / "m/weights/w.bin").write_bytes(bytes(16))
    check_external_data(path, tmp_path / "m")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "missing"])
def test_data_file_outside_the_folder_is_refused(tmp_path, location):
    """CVE-2024-27318."""
    (tmp_path / "secret").write_bytes(bytes(16))
    with pytest.raises(ModelLoadError, match=r"m\.onnx keeps data in"):
        check_external_data(save(tmp_path / "m", location), tmp_path / "m")


def test_links_are_refused(tmp_path):
    path = save(tmp_path / "m", "w.bin")
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "m/w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match="link"):
        check_external_data(path, tmp_path / "m")
    (tmp_path / "m/w.bin").unlink()
    (tmp_path / "m/w.bin").hardlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match="one name"):
        check_external_data(path, tmp_path / "m")


def test_a_linked_folder_is_refused(tmp_path):
    path = save(tmp_path / "m", "d/w.bin")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/w.bin").write_bytes(bytes(16))
    (tmp_path / "m/d").symlink_to(tmp_path / "out")
    with pytest.raises(ModelLoadError, match="link"):
        check_external_data(path, tmp_path / "m")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_truncated_file_never_surprises(tmp_path, cut):
    path = save(tmp_path / "m", "w.bin")
    (tmp_path / "m/w.bin").write_bytes(bytes(16))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ModelLoadError, match=r"m\.onnx"):
        check_external_data(path, tmp_path / "m")

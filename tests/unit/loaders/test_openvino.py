"""The loader of OpenVINO's IR: files that cannot be loaded, shapes that cannot be given."""

import os
import shutil
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("openvino", reason="make test-openvino installs it")

from ksrv.dialects.openvino.options import LOADER, OpenVinoOptions
from ksrv.loaders.choice import load_model
from ksrv.loaders.loaded import LoadRequest, ModelLoadError
from ksrv.model.spec import TensorSpec
from ksrv.testing import LoadFailed
from ksrv.testing import load as load_folder
from tests.support.model_files.openvino_models import (
    openvino,
    ops,
    parameter,
    write_convolution,
    write_ir,
    write_scale,
)


def load(path, options=None, **settings):
    if options is not None:
        settings |= {"runtime": LOADER, "dialect": options.mapping()}
    return load_model(LoadRequest(path, settings.pop("root", path.parent), **settings))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x7fELF" + b"\0" * 5000, "is not an OpenVINO IR"),
        (b"<?xml version='1.0'?><project><modelVersion/></project>", "is not an OpenVINO IR"),
        (b"<a>" * 100_000, "is not an OpenVINO IR"),
        (b"<?xml version='1.0'?>\n<net name='x' version='11'>" + b"<a>" * 100_000, "by OpenVINO"),
        (b"<net version='99'></net>", "by OpenVINO"),
    ],
)
def test_files_that_are_not_ir_are_refused(tmp_path, content, said):
    (tmp_path / "m.xml").write_bytes(content)
    (tmp_path / "m.bin").write_bytes(b"\0" * 64)
    with pytest.raises(ModelLoadError, match=said) as caught:
        load(tmp_path / "m.xml")
    assert str(caught.value).startswith(f"{tmp_path}/m.xml ") and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('offset="0"', 'offset="99999999999"'),
        ('offset="0"', 'offset="18446744073709551615"'),
        ('size="4"', 'size="-4"'),
        ('size="4"', 'size="99999999999"'),
        ('version="opset1"', 'version="opset999"'),
        ("</layers>", ""),
    ],
)
def test_inconsistent_ir_is_refused(tmp_path, old, new):
    path = write_scale(tmp_path / "m.xml", 2)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ModelLoadError, match=r"cannot be loaded by OpenVINO \S+: ") as caught:
        load(path)
    assert ".cpp" not in str(caught.value)


def test_weights_are_needed_whole_and_inside_of_the_folder(tmp_path):
    path = write_scale(tmp_path / "model/m.xml", 2)
    weights = path.with_suffix(".bin")
    shutil.move(weights, tmp_path / "m.bin")
    with pytest.raises(ModelLoadError, match=r"needs its weights in m\.bin"):
        load(path)
    os.symlink(tmp_path / "m.bin", weights)
    with pytest.raises(ModelLoadError, match="leads out of the model's folder"):
        load(path)
    weights.unlink()
    weights.write_bytes(b"\0")
    with pytest.raises(ModelLoadError, match="Incorrect weights"):
        load(path)


def test_an_onnx_file_names_no_data_outside_of_its_folder(tmp_path):
    onnx = pytest.importorskip("onnx")
    from tests.support.model_files.onnx_models import write_scale as write_onnx

    path = write_onnx(tmp_path / "model/m.onnx", 2)
    loaded = load(path, options=OpenVinoOptions())
    assert loaded.platform == "OpenVINO"
    assert loaded.model(np.ones((1, 4), np.float32))["y"].tolist() == [[2] * 4]
    model = onnx.load(path)
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match="leaves the model's folder"):
        load(path, options=OpenVinoOptions())


def test_tensors_come_from_the_file(tmp_path):
    x = parameter("x", [(1, 8), 3, (2, 9)], "i32")
    path = write_ir(tmp_path / "m.xml", [x], {"y": ops.convert(x, "f16")})
    loaded = load(path)
    assert loaded.inputs == (TensorSpec("x", "INT32", (-1, 3, (2, 9))),)
    assert loaded.outputs == (TensorSpec("y", "FP16", (-1, 3, (2, 9))),)
    assert loaded.platform == "OpenVINO" and not loaded.is_torch
    found = loaded.model(np.ones((2, 3, 4), np.int32))
    assert found["y"].dtype == np.float16 and found["y"].shape == (2, 3, 4)


def test_a_shape_that_the_model_cannot_take(tmp_path):
    path = write_convolution(tmp_path / "m.xml")
    with pytest.raises(ModelLoadError, match="cannot be loaded by OpenVINO"):
        load(path, inputs=(TensorSpec("image", "FP32", (-1, 4, 8, 8)),))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shapes": {"z": (1,)}}, "has no input 'z' to give a shape; it has image"),
        ({"layouts": {"z": "NHWC"}}, "unknown tensor 'z' in layout"),
        ({"layouts": {"": "NHWC:NQZ"}}, "cannot be loaded by OpenVINO"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, said):
    path = write_convolution(tmp_path / "m.xml")
    with pytest.raises(ModelLoadError, match=said):
        load(path, options=OpenVinoOptions(**options))


def test_an_unknown_property_is_named(tmp_path):
    path = write_convolution(tmp_path / "m.xml")
    with pytest.raises(ModelLoadError, match="Unsupported property NONSENSE"):
        load(path, properties={"NONSENSE": 1})


def test_numbers_are_computed_as_the_file_says_unless_a_property_allows_less(tmp_path):
    path = write_convolution(tmp_path / "m.xml")

    def precision(**properties):
        compiled = load(path, properties=properties).model.compiled
        return compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()

    assert precision() == "f32"
    # Without a wish, OpenVINO takes what the processor is fastest with.
    fastest = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    assert precision(INFERENCE_PRECISION_HINT=fastest) == fastest


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (("data", "BYTES", (-1,)), (1, 3, 8, 8)),
        (("image", "FP32", (-1, 3, 48, 48)), (1, 3, 8, 8)),
        (("pixels", "UINT8", (-1, 3, 8, 8)), (1, 3, 8, 8)),
        (("pixels", "FP32", (-1, 8)), (1, 3, 8, 8)),
        (("image", "FP32", (-1, 3, 8, 8)), (-1, 3, 8, 8)),
        (("pixels", "FP32", (4, 3, 8, 8)), (4, 3, 8, 8)),
    ],
)
def test_inputs_of_a_handler_reshape_the_file_in_the_number_of_rows_alone(
    tmp_path, declared, shape
):
    path = write_convolution(tmp_path / "m.xml")
    loaded = load(path, inputs=(TensorSpec(*declared),), passes_inputs=False)
    assert loaded.inputs[0].shape == shape


DECODES = """
import numpy as np
from ksrv import BaseHandler, Bytes, Float32

class Decodes(BaseHandler):
    inputs = {"data": Bytes}
    outputs = {"scores": Float32[5]}

    def inference(self, data):
        rows = [np.frombuffer(one, np.uint8).astype(np.float32) for one in data.ravel()]
        return np.concatenate([self.model(row.reshape(1, 3, 8, 8))["scores"] for row in rows])
"""


def test_a_handler_decodes_bytes_for_a_file_of_another_input(tmp_path):
    write_convolution(tmp_path / "m.xml")
    (tmp_path / "handler.py").write_text(DECODES)
    (tmp_path / "model.yaml").write_text("handler: handler.py\nmodel: m.xml\n")
    with load_folder(tmp_path) as model:
        assert model.infer({"data": [bytes(range(192))]})["scores"].shape == (1, 5)


def test_properties_are_for_files_of_openvino(tmp_path):
    (tmp_path / "handler.py").write_text(DECODES)
    yaml = "handler: handler.py\nopenvino: {properties: {NUM_STREAMS: 1}}\n"
    (tmp_path / "model.yaml").write_text(yaml)
    with pytest.raises(LoadFailed, match="openvino: needs a model file"):
        load_folder(tmp_path)
    (tmp_path / "m.onnx").write_bytes(b"a file")
    (tmp_path / "model.yaml").write_text(f"{yaml}model: m.onnx\n")
    with pytest.raises(LoadFailed, match=r"is for OpenVINO, which does not read .*m\.onnx"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"batch": 4}, (4, 3, 8, 8)),
        ({"batch": -1}, (-1, 3, 8, 8)),
        ({"shapes": {"": (1, 3, 16, 16)}}, (1, 3, 16, 16)),
        ({"shapes": {"image": (-1, 3, (8, 16), 8)}}, (-1, 3, (8, 16), 8)),
        ({"layouts": {"": "NHWC:NCHW"}}, (1, 8, 8, 3)),
        ({"layouts": {"image": "NHWC:NCHW"}, "batch": -1}, (-1, 8, 8, 3)),
    ],
)
def test_options_change_what_clients_see(tmp_path, options, shape):
    loaded = load(write_convolution(tmp_path / "m.xml"), options=OpenVinoOptions(**options))
    assert loaded.inputs[0].shape == shape


def test_datatypes_that_kserve_lacks_and_other_devices(tmp_path):
    x = parameter("x", [2], "u4")
    path = write_ir(tmp_path / "m.xml", [x], {"y": ops.convert(x, "f32")})
    with pytest.raises(ModelLoadError, match="x is a tensor of u4"):
        load(path)
    with pytest.raises(ModelLoadError, match="run on the CPU"):
        load(write_scale(tmp_path / "n.xml", 2), device="cuda:0")


@pytest.mark.parametrize("shape", [(1001,), (1001, 1), (7, 143), (0,), (3, 0), ()])
def test_a_long_text_costs_the_texts_beside_it_no_memory(tmp_path, shape):
    words = parameter("words", [-1] * len(shape), "string")
    loaded = load(write_ir(tmp_path / "m.xml", [words], {"same": words}))
    count = int(np.prod(shape))
    texts = [b"%d" % place for place in range(count)]
    texts[count // 2 : count // 2 + 1] = [b"long" * 50_000] if count else []
    given = np.array(texts, dtype=object).reshape(shape)
    tracemalloc.start()
    try:
        found = loaded.model(given)["same"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.dtype == object and found.shape == shape
    assert found.reshape(-1).tolist() == texts
    assert peak < 40_000_000

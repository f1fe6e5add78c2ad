"""How a handler receives BYTES if its folder also has a model file."""

from ksrv.testing import load
from tests.support.model_files.onnx_models import write_graph

HANDLER = """
from ksrv import BaseHandler, Bytes

class Sizes(BaseHandler):
    inputs = {"data": Bytes}
    outputs = {"kind": Bytes}

    def inference(self, data):
        return {"kind": [type(one).__name__ for one in data]}
"""


def write_identity(folder):
    """Write a model file that returns its input texts."""
    nodes, texts = [("Identity", ["data"], ["texts"], {})], ("BYTES", ("N",))
    write_graph(folder / "m.onnx", nodes, {"data": texts}, {"texts": texts})


def test_custom_inference_gets_bytes(tmp_path):
    write_identity(tmp_path)
    (tmp_path / "handler.py").write_text(HANDLER)
    with load(tmp_path) as model:
        answer = model.infer({"data": [b"text", b"\xff\x00 no text"]})
    assert answer["kind"].tolist() == [b"bytes", b"bytes"]


def test_custom_inference_can_pass_bytes_to_the_file(tmp_path):
    write_identity(tmp_path)
    (tmp_path / "handler.py").write_text(
        "from ksrv import BaseHandler\n\n\nclass Passes(BaseHandler):\n"
        "    def inference(self, data):\n        return self.model(data)\n"
    )
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\nmodel: m.onnx\ninputs: [{name: data, datatype: BYTES, shape: [-1]}]\n"
    )
    with load(tmp_path) as model:
        assert model.infer({"data": [b"a", "\u00e9".encode()]})["texts"].tolist() == [
            b"a",
            "\u00e9".encode(),
        ]


def test_default_stages_refuse_bytes_that_are_not_text(tmp_path):
    write_identity(tmp_path)
    (tmp_path / "model.yaml").write_text("model: m.onnx\nbatching: {max_batch_size: 4}\n")
    with load(tmp_path) as model:
        good, bad = model.infer_many([{"data": [b"a"]}, {"data": [b"\xff"]}])
    assert good["texts"].tolist() == [b"a"]
    assert "is not UTF-8" in bad.message

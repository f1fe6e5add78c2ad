"""Mistakes of beginners: each error names the cause and the remedy."""

import io

import pytest

from ksrv.repository.layout import RepositoryError
from ksrv.testing import LoadFailed, load

HANDLER = """
from ksrv import BaseHandler, Float32


class Mine(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        return x
"""
OTHERS_CLASS = "class Mine:\n    def predict(self, x):\n        return x\n"

NET = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"


def onnx_file(opsets=((17, ""),), version=8, domain=""):
    """A model of one operator, Relu."""
    import onnx
    from onnx import helper

    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], domain=domain)], "g", [x], [y]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(name, number) for number, name in opsets]
    )
    model.ir_version = version
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    if not opsets:
        del model.opset_import[:]
    return model.SerializeToString()


def weights(inputs):
    """A state_dict of a linear layer with two outputs."""
    import torch

    file = io.BytesIO()
    torch.save(torch.nn.Linear(inputs, 2).state_dict(), file)
    return file.getvalue()


MISTAKES = {
    "no ONNX": ({"model.yaml": "model: m.onnx\n", "m.onnx": "text"},
                "m.onnx is not an ONNX file; copy it or export it again"),
    "ONNX without a version": (
        {"model.yaml": "model: m.onnx\n", "m.onnx": onnx_file(opsets=[])},
        r"m.onnx cannot be loaded by ONNX Runtime [\d.]+: Missing opset in the model\. .*; export the model again",
    ),
    "ONNX of a later version": (
        {"model.yaml": "model: m.onnx\n", "m.onnx": onnx_file(version=77)},
        r"m.onnx cannot be loaded by ONNX Runtime [\d.]+: Unsupported model IR version: 77, .*; export the model again",
    ),
    "ONNX with a custom operator": (
        {"model.yaml": "model: m.onnx\n", "m.onnx": onnx_file(domain="com.acme")},
        "com.acme:Relu.* is not a registered function/op; ksrv loads no libraries of custom operators",
    ),
    "trust in a file that is never loaded as a pickle": (
        {"model.yaml": "model: m.pth\nclass: net.py:Net\ntrust: pickle\n", "m.pth": weights(4), "net.py": NET},
        r"line 3.*trust: is for .joblib and .pkl files under model:; leave it out",
    ),
    "trust without a file": (
        {"model.yaml": "handler: handler.py\ntrust: pickle\n", "handler.py": HANDLER},
        "trust: is for .joblib and .pkl files",
    ),
    "weights of other sizes": (
        {"model.yaml": "model: m.pth\nclass: net.py:Net\n", "m.pth": weights(3), "net.py": NET},
        r"m.pth does not fit its class Net: .* size mismatch .*; build the network with the sizes",
    ),
    "no safetensors": (
        {"model.yaml": "model: m.safetensors\nclass: net.py:Net\n", "m.safetensors": "text", "net.py": NET},
        "m.safetensors is not a safetensors file: .*; copy it or save it again",
    ),
    "another name of the method": (
        {"handler.py": HANDLER.replace("inference", "predict")},
        "Mine has no method inference, and the model has no file to call; rename Mine.predict to inference",
    ),
    "no method and no model": (
        {"handler.py": "from ksrv import BaseHandler\nclass Mine(BaseHandler):\n    pass\n"},
        "write the method inference in Mine, or name a model file under model: in model.yaml",
    ),
    "a constructor with arguments": (
        {"handler.py": HANDLER + "\n    def __init__(self, path):\n        self.path = path\n"},
        r"Mine\(\) cannot be called without arguments, .* 'path'; load what the handler needs in initialize",
    ),
    "no handler in the file": (
        {"handler.py": "x = 1\n"}, "no function inference; write a class that derives from ksrv.BaseHandler",
    ),
    "misspelt class": (
        {"handler.py": HANDLER, "model.yaml": "handler: handler.py:Mein\n"},
        r"handler.py has no Mein \(did you mean Mine\?\)",
    ),
    "misspelt import": (
        {"handler.py": HANDLER.replace("Float32\n", "Float23\n")},
        r"cannot import name 'Float23' .*handler.py, line 2\) \(did you mean Float32\?\)",
    ),
    "a file beside the handler": (
        {"handler.py": HANDLER + "\n    def initialize(self, context):\n        open('labels.txt')\n", "labels.txt": "a"},
        r"line 10\); relative paths begin .* write context.file\('labels.txt'\)",
    ),
    "a file beside the handler, read by its import": (
        {"handler.py": "def load():\n    return open('a/labels.txt')\nload()\n" + HANDLER},
        r"relative paths begin .* write Path\(__file__\).parent / 'a/labels.txt'",
    ),
    "a program that is not installed": (
        {"handler.py": "import subprocess\nsubprocess.run(['no-such-program'])\n" + HANDLER},
        r"No such file or directory: 'no-such-program' \(handler.py, line 2\)$",
    ),
    "a call of exit": (
        {"handler.py": "import sys\nsys.exit(1)\n"}, r"SystemExit: 1 \(handler.py, line 2\); a handler must not end",
    ),
    "a shape that is not declared": (
        {"handler.py": HANDLER.replace("return x", "return x[:, :1]")},
        r"the declared shape is \[-1, 2\]; return what is declared, or change the return hint",
    ),
    "names that are not declared": (
        {"handler.py": HANDLER.replace("return x", "return {'a': x}")},
        "returned the outputs a; declared are output; return what is declared",
    ),
    "a file that Git LFS did not download": (
        {"model.yaml": "model: m.onnx\n", "m.onnx": "version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 9\n"},
        "m.onnx is a pointer of Git LFS and not the file itself; run `git lfs pull`",
    ),
    "tab": ({"model.yaml": "handler: handler.py\nbatching:\n\tmax_batch_size: 2\n", "handler.py": HANDLER},
            "line 3: .* indent with spaces"),
    "requirements": ({"model.yaml": "handler: handler.py\nrequirements: r.txt\n", "handler.py": HANDLER},
                     r"line 2: requirements: ksrv installs no packages; make an environment .* name its folder in python:"),
    "misspelt file": ({"model.yaml": "handler: handlr.py\n", "handler.py": HANDLER},
                      r"the file 'handlr.py' is not in .*did you mean handler.py\?"),
    "misspelt labels": ({"model.yaml": "handler: handler.py\nlabels: label.txt\n", "handler.py": HANDLER,
                         "labels.txt": "a\n"}, r"did you mean labels.txt\?"),
    "another server's class": ({"handler.py": OTHERS_CLASS},
                               "derive Mine from ksrv.BaseHandler, and call what answers a request inference"),
    "no parameter": ({"handler.py": HANDLER.replace("self, x: Float32[2]", "self"),
                      "model.yaml": "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [2]}]\n"},
                     r"Mine.inference\(\) has no parameter, .* such as def inference\(self, x: Float32\[4\]\)"),
    "a function without a parameter": ({"handler.py": "def mean():\n    return 1\n",
                                        "model.yaml": "handler: handler.py:mean\ninputs: [{name: x, datatype: FP32, shape: [2]}]\n"},
                                       r"mean\(\) has no parameter, .* such as def mean\(x: Float32\[4\]\)"),
    "empty weights": ({"model.yaml": "model: m.pth\n", "m.pth": ""},
                      r"m.pth is empty \(0 bytes\); copy or save it again"),
    "empty model file": ({"model.yaml": "model: m.onnx\n", "m.onnx": ""},
                         r"m.onnx is empty \(0 bytes\); copy or export it again"),
    "missing package": ({"handler.py": "import a_package_that_nobody_has\n" + HANDLER},
                        r"handler.py, line 1\); install its package where the server runs"),
    "missing device": ({"model.yaml": "handler: handler.py\ndevice: xpu\n", "handler.py": HANDLER},
                       "`device: auto` takes what is there"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "sentence"), list(MISTAKES.values()), ids=list(MISTAKES))
def test_mistake_names_cause_and_remedy(tmp_path, files, sentence):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((LoadFailed, RepositoryError), match=sentence):
        load(folder)

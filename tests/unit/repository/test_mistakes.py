"""Mistakes of people who write their first models: each is told with its cause and what to do."""

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

MISTAKES = {
    "no ONNX": ({"model.yaml": "model: m.onnx\n", "m.onnx": "text"},
                "m.onnx is no ONNX file; copy it or export it again"),
    "tab": ({"model.yaml": "handler: handler.py\nbatching:\n\tmax_batch_size: 2\n", "handler.py": HANDLER},
            "line 3: .* indent with spaces"),
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
def test_a_mistake_is_told_with_its_cause_and_what_to_do(tmp_path, files, sentence):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises((LoadFailed, RepositoryError), match=sentence):
        load(folder)

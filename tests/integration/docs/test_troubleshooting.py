"""docs/troubleshooting.md has the messages that ksrv prints today: each mistake below is made, and its row is found."""

import re
import subprocess
import sys

import joblib
import pytest
import requests

from ksrv.testing import Server, load
from tests.support.models import write_model
from tests.support.paths import ROOT

ROWS = re.findall(r"^\| `(.+?)` \| ", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)

STAGES = "from ksrv import BaseHandler, Float32\n\n\nclass M(BaseHandler):\n"
ECHO = "    def inference(self, x: Float32[3]) -> Float32[3]:\n        return x\n"
FUNCTION = "def inference(x):\n    return {'result': x}\n"
TENSORS = (
    "handler: handler.py\n"
    "inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]\n"
    "outputs: [{name: output, datatype: FP32, shape: [-1, 3]}]\n"
)

FOLDERS = {
    "yml": {"model.yml": "handler: handler.py\n", "handler.py": FUNCTION},
    "key": {"model.yaml": "handler: handler.py\nbatchng: {}\n", "handler.py": FUNCTION},
    "suffix": {"model.yaml": "model: iris.h5\n", "iris.h5": "x"},
    "stage": {
        "m.py": f"{STAGES}    def pre_process(self, batch):\n        return batch['x']\n\n{ECHO}"
    },
    "initialize": {"m.py": f"{STAGES}    def initialize(self):\n        pass\n\n{ECHO}"},
    "package": {"m.py": f"import no_such_package\n{STAGES}{ECHO}"},
    "outputs": {"model.yaml": TENSORS, "handler.py": FUNCTION},
    "rows": {
        "model.yaml": "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [3]}]\n"
        "batching: {max_batch_size: 8}\n",
        "handler.py": FUNCTION,
    },
}
"""Models with a mistake, by the mistake; a model of one file is in m.py."""

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
REQUESTS = {
    "name": ("iris/infer", {"json": {"inputs": [X | {"name": "input"}]}}),
    "shape": ("iris/infer", {"json": {"inputs": [X | {"shape": [1, 3], "data": [1, 2, 3]}]}}),
    "no batch": ("iris/infer", {"json": {"inputs": [X | {"shape": [4]}]}}),
    "datatype": ("iris/infer", {"json": {"inputs": [X | {"datatype": "FP64"}]}}),
    "null": ("iris/infer", {"json": {"inputs": [X | {"data": [None, 2, 3, 4]}]}}),
    "quotes": ("iris/infer", {"data": "{'inputs': []}"}),
    "plain JSON": ("iris/infer", {"json": {"x": [1, 2, 3, 4]}}),
    "form": ("cats/generate", {"files": {"image": b"abc"}}),
    "picture": ("cats/infer", {"files": {"image": b"abc"}}),
    "many rows": ("iris/infer", {"json": {"inputs": [X | {"shape": [9, 4], "data": [0] * 36}]}}),
    "model": ("irsi/infer", {"json": {"inputs": [X]}}),
    "path": ("iris", {"json": {"inputs": [X]}}),
    "exception": ("iris/infer", {"json": {"inputs": [X | {"data": [-1] * 4}]}}),
}


def load_errors(folder):
    for name, files in FOLDERS.items():
        path = folder / name
        path.mkdir()
        for file, text in files.items():
            (path / file).write_text(text)
        with pytest.raises(Exception) as caught, load(path / "m.py" if "m.py" in files else path):
            pass
        yield str(caught.value)


def files_of_libraries(folder):
    torch = pytest.importorskip("torch")
    (folder / "weights").mkdir()
    (folder / "weights/model.yaml").write_text("model: net.pth\n")
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "weights/net.pth")
    (folder / "pickle").mkdir()
    (folder / "pickle/model.yaml").write_text("model: iris.joblib\n")
    joblib.dump({"a": 1}, folder / "pickle/iris.joblib")
    for name in ("weights", "pickle"):
        with pytest.raises(Exception) as caught, load(folder / name):
            pass
        yield str(caught.value)


def start_errors(folder):
    (folder / "empty/texts").mkdir(parents=True)
    (folder / "empty/texts/notes.md").write_text("")
    (folder / "m.py").write_text(STAGES + ECHO)
    for words in (["nothing"], ["empty"], ["m.py", "--http", "0.0.0.0:0"]):
        done = subprocess.run(
            [sys.executable, "-m", "ksrv", "serve", *words],
            cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        yield done.stderr.strip().removeprefix("Error: ")


def request_errors(folder):
    write_model(
        folder, "iris",
        "def inference(x):\n    if x.min() < 0:\n        raise ValueError\n    return {'y': x}\n",
        "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]\nbatching: {max_batch_size: 8}\n",
    )  # fmt: skip
    write_model(
        folder, "cats", "def inference(image):\n    return {'y': image.mean(axis=(1, 2, 3))}\n",
        "inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1]}]\n",
    )  # fmt: skip
    with Server(folder) as server:
        for path, options in REQUESTS.values():
            answer = requests.post(f"{server.url}/v2/models/{path}", timeout=30, **options)
            yield answer.json()["error"]
        yield requests.get(f"http://{server.grpc}/", timeout=30).json()["error"]


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """The message that ksrv prints for each mistake."""
    made = (load_errors, files_of_libraries, start_errors, request_errors)
    return [
        message for errors in made for message in errors(tmp_path_factory.mktemp(errors.__name__))
    ]


def pattern(row):
    return re.compile(".*".join(re.escape(piece) for piece in row.split("…")), re.DOTALL)


@pytest.mark.parametrize("row", ROWS)
def test_message_is_what_ksrv_says(row, messages):
    assert any(pattern(row).fullmatch(message) for message in messages), "\n".join(messages)


def test_every_mistake_has_a_row(messages):
    missing = [one for one in messages if not any(pattern(row).fullmatch(one) for row in ROWS)]
    assert missing == []


def test_page_has_the_first_mistakes():
    assert len(ROWS) >= 20

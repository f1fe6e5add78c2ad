"""Pickles that name classes of the model's folder, and pools of processes that import its files."""

import subprocess
import sys

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import LoadFailed, Server, load

FEATURES = """
class Scale:
    def __init__(self, by):
        self.by = by

    def transform(self, x):
        return x * self.by


def squared(x):
    return x * x
"""

TRAIN = """
import pickle, sys
import {module} as features

one = features.Scale(3.0)
if sys.argv[1] == "torch":
    import torch
    torch.save({{"step": one}}, "model.pkl")
else:
    with open("model.pkl", "wb") as file:
        pickle.dump({{"step": one}}, file)
"""

# joblib unpickles with a subclass of the class in Python, which imports without the frame of its caller.
READERS = {
    "pickle": "import pickle\ndef read(file): return pickle.load(file)",
    "in Python": "import pickle\ndef read(file): return pickle._Unpickler(file).load()",
    "torch": "import torch\ndef read(file): return torch.load(file, weights_only=False)",
}

HANDLER = """
import sys
from ksrv import BaseHandler, Float32
from reading import read


class Model(BaseHandler):
    def initialize(self, context):
        with open(context.file("model.pkl"), "rb") as file:
            self.model = read(file)["step"]

    def inference(self, x: Float32[2]) -> Float32[2]:
        from {package} import {name}

        assert type(self.model) is {name}.Scale
        return self.model.transform(x)
"""


def write(root, name, reader, executor, module="features"):
    """Write a model whose weights were pickled by a script in its folder."""
    folder = root / name
    file = folder / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.write_text(FEATURES)
    if reader == "torch":
        pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, "-c", TRAIN.format(module=module), reader], cwd=folder, check=True
    )
    package, _, last = module.rpartition(".")
    (folder / "reading.py").write_text(READERS[reader])
    (folder / "handler.py").write_text(HANDLER.format(package=package or ".", name=last))
    (folder / "model.yaml").write_text(f"handler: handler.py\nexecutor: {executor}\n")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("pickles")
    write(root, "pickle", "pickle", "process")
    write(root, "python", "in Python", "process")
    write(root, "torch", "torch", "process")
    write(root, "nested", "in Python", "process", "parts.features")
    with Server(root, start_timeout=120) as server:
        yield server


@pytest.mark.parametrize("name", ["pickle", "python", "torch", "nested"])
def test_a_pickle_loads_in_a_handler_process(server, name):
    with Client(server.url) as client:
        answer = client.infer(name, {"x": np.array([[1, 2]], np.float32)})
    assert answer["output"].tolist() == [[3.0, 6.0]]


@pytest.mark.parametrize("reader", READERS)
def test_a_test_in_this_process_loads_it_too(tmp_path, reader):
    before = set(sys.modules)
    with load(write(tmp_path, "m", reader, "process")) as model:
        assert model.infer({"x": [[1.0, 2.0]]})["output"].tolist() == [[3.0, 6.0]]
    assert not {"features", "handler", "reading"} & (set(sys.modules) - before)


@pytest.mark.parametrize("reader", READERS)
def test_inline_the_sentence_names_the_remedy(tmp_path, reader):
    folder = write(tmp_path, "m", reader, "inline")
    with pytest.raises(LoadFailed, match=r"'features' is in .* executor: process"):
        load(folder)


def test_an_error_of_another_kind_has_no_remedy(tmp_path):
    folder = write(tmp_path, "m", "pickle", "inline")
    (folder / "reading.py").write_text("def read(file): return {}\n")
    with pytest.raises(LoadFailed) as failed:
        load(folder)
    assert "KeyError: 'step'" in str(failed.value) and "executor" not in str(failed.value)


POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from ksrv import BaseHandler, Float32
from features import Scale, squared


def halved(step):
    return Scale(step.by / 2)


class Model(BaseHandler):
    def initialize(self, context):
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def inference(self, x: Float32[2]) -> Float32[2]:
        step = self.pool.submit(halved, Scale(4.0)).result()
        return step.transform(self.pool.submit(squared, np.asarray(x)).result())

    def close(self):
        self.pool.shutdown()
"""


def test_a_pool_of_processes_imports_the_files_of_the_folder(tmp_path):
    folder = tmp_path / "pool"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    (folder / "handler.py").write_text(POOL)
    (folder / "model.yaml").write_text("handler: handler.py\nexecutor: process\n")
    with Server(folder, start_timeout=120) as server, Client(server.url, timeout=60) as client:
        answer = client.infer("pool", {"x": np.array([[1, 3]], np.float32)})
        assert answer["output"].tolist() == [[2.0, 18.0]]


def test_a_file_of_the_folder_hides_nothing_that_was_imported_before(tmp_path):
    """`logging` is the folder's module in the folder's files, and Python's everywhere else."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "logging.py").write_text("level = 7\n")
    (folder / "handler.py").write_text(
        "import sys\nimport logging\nfrom .logging import level\n"
        "def inference(x):\n    assert sys.modules['logging'].getLogger\n    return x * logging.level * level\n"
    )
    (folder / "model.yaml").write_text("handler: handler.py\nexecutor: process\n")
    with Server(folder, start_timeout=120) as server, Client(server.url) as client:
        answer = client.infer("m", {"x": np.array([[1, 3]], np.float32)})
        assert answer["output"].tolist() == [[49.0, 147.0]]

"""One server for the tests of TorchServe's handlers: archives under the process executor."""

import sys
from textwrap import dedent

import pytest

from ksrv.handlers.runner import make_runner
from ksrv.repository.layout import Repository
from ksrv.testing import Server
from tests.support.torchserve.archives import archive, write_files
from tests.support.torchserve.golden_models import write_golden_models

CPU = {"deviceType": "cpu"}
COMPILE = {"compile": {"enable": True, "backend": "eager", "mode": "default"}}
OWN_KEYS = {"minWorkers": 1, "maxWorkers": 1, "responseTimeout": 60, "myCustomKey": {"a": [1, "x"]}}


@pytest.fixture(scope="session")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    write_golden_models(folder)
    return folder


def fill(store, files):
    """Make the archives of the server."""
    numbers = "numbers_handler.py"
    archive(store, "line", numbers, files=files, model="line.pt", labels=True)
    archive(
        store, "eager", numbers, files=files, model="line.pth", definition="line.py",
        settings=CPU | {"pt2": COMPILE}, version="2.0",
    )  # fmt: skip
    archive(
        store, "eager", numbers, files=files, model="line.pth", definition="line.py", settings=CPU,
        file_name="eager_first",
    )  # fmt: skip
    archive(
        store, "nope", numbers, files=files, model="line.pth", definition="line.py",
        settings=CPU | {"pt2": {"compile": {"enable": True, "backend": "nope"}}},
    )  # fmt: skip
    archive(store, "echo", "seen_handler.py", settings=CPU | OWN_KEYS)
    archive(
        store, "outcome", "outcome_handler.py",
        settings=CPU | {"responseTimeout": 4, "jobQueueSize": 2},
    )  # fmt: skip
    archive(store, "picture", "picture_handler.py", files=files, model="picture.pt", settings=CPU)
    archive(
        store, "typed", "typed_handler.py", files=files, model="line.pt",
        settings=CPU | {"envelope": "kservev2"},
    )  # fmt: skip
    archive(
        store, "micro", "micro_handler.py", files=files, model="line.pt",
        settings=CPU | {"batchSize": 4, "maxBatchDelay": 60_000},
    )  # fmt: skip
    archive(
        store, "profiled", "profiled_handler.py", files=files, model="line.pt",
        settings=CPU | {"handler": {"profile": True}},
    )  # fmt: skip
    archive(store, "session", "session_handler.py", files=files, model="relu.onnx", settings=CPU)
    archive(store, "function", "function_handler.py", settings=CPU)
    archive(store, "named", "function_handler:named", settings=CPU)
    archive(
        store, "unwrapped", "envelope_handler.py", settings=CPU | {"envelope": "json"}, form="tgz"
    )


@pytest.fixture(scope="session")
def served(tmp_path_factory, model_files):
    store = tmp_path_factory.mktemp("torchserve") / "store"
    store.mkdir()
    fill(store, model_files)
    with Server(store, torchserve_api=True, start_timeout=200) as server:
        yield server


@pytest.fixture
def ts_modules(monkeypatch):
    """Forget what a handler has imported in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("own_handler", "own_envelope", "net", "layers") or name.partition(".")[0] in (
            "ts",
            "torchvision",
        ):
            del sys.modules[name]


@pytest.fixture
def ts_runner(tmp_path, ts_modules):
    """Make a loaded runner of a TorchServe handler's source, in this process."""
    runners = []

    def make(handler, config="", files=(), instance=0, archive=None, manifest=None):
        folder = tmp_path / "own"
        folder.mkdir()
        (folder / "own_handler.py").write_text(dedent(handler))
        for name, content in dict(files).items():
            (folder / name).write_bytes(content)
        (folder / "model.yaml").write_text("handler: own_handler.py\n" + dedent(config))
        source = Repository([tmp_path]).scan()["own"].versions[""]
        source.config.torchserve.update(archive or {})
        source.config.torchserve["manifest"]["model"].update(manifest or {})
        runner = make_runner(source, instance=instance)
        runners.append(runner)
        runner.load()
        return runner

    yield make
    for runner in runners:
        runner.close()

"""One server for the tests of TorchServe's handlers: archives under the process executor."""

import pytest

from ksrv.testing import Server
from tests.support.torchserve.archives import archive, write_files
from tests.support.torchserve.golden_models import write_golden_models
from tests.support.torchserve.modules import ts_modules

__all__ = ["ts_modules"]

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
    archive(store, "named", "function_handler:named", settings=CPU)


@pytest.fixture(scope="session")
def served(tmp_path_factory, model_files):
    store = tmp_path_factory.mktemp("torchserve") / "store"
    store.mkdir()
    fill(store, model_files)
    with Server(store, torchserve_api=True, start_timeout=200) as server:
        yield server

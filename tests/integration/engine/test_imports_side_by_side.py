"""Models that are loaded side by side import one package, which plain Python cannot do on two threads.

The modules of the package `tangle` import each other, as many do. In one thread Python hands the second a half of the
first. In two threads that hold one module each, it raises `_DeadlockError`: the modules wait for each other, so
that this happens whenever the imports are under way together.
"""

import concurrent.futures
import os
import subprocess
import sys

import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import VECTOR, write_model

pytestmark = pytest.mark.long

TANGLE = {
    "__init__": """
import threading

both = threading.Barrier(2)


def meet():
    try:
        both.wait(2)
    except threading.BrokenBarrierError:
        pass  # nobody else imports meanwhile
""",
    "first": """
from importlib import import_module

from tangle import meet

meet()
import_module("tangle.second")
""",
    "second": """
from importlib import import_module

from tangle import meet

meet()
import_module("tangle.first")
""",
    "thread": """
import threading

done = []


def work():
    import tangle.first

    done.append(True)


worker = threading.Thread(target=work)
worker.start()
worker.join()
""",
}

AT_THE_TOP = """
import tangle.{module}


def inference(x):
    return {{"y": x}}
"""

IN_INITIALIZE = """
from ksrv import BaseHandler


class Lazy(BaseHandler):
    def initialize(self, context):
        import tangle.{module}

    def inference(self, x):
        return {{"y": x}}
"""

IN_THE_WARM_UP = """
def inference(x):
    import tangle.{module}

    return {{"y": x}}
"""

IN_A_COROUTINE = """
async def inference(x):
    import tangle.{module}

    return {{"y": x}}
"""

OF_A_CLASS = """
import tangle.{module}
import torch


class Net(torch.nn.Identity):
    pass
"""


@pytest.fixture
def site(tmp_path):
    """A folder with the package, and the variable with which a server finds it."""
    package = tmp_path / "site/tangle"
    package.mkdir(parents=True)
    for name, text in TANGLE.items():
        (package / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(package.parent)}


def write_two(models, handler):
    for module in ("first", "second"):
        write_model(models, module, handler.format(module=module), VECTOR)


def check_served(server, *names):
    """Each model answers, and none failed while it was loaded or warmed up."""
    with Client(server.url) as client:
        for name in names:
            answer = client.infer(name, {"x": [[1, 2, 3, 4]]})
            assert next(iter(answer.values())).tolist() == [[1, 2, 3, 4]]
    assert "ERROR" not in server.log and "not warmed up" not in server.log, server.log


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(AT_THE_TOP, id="top"),
        pytest.param(IN_INITIALIZE, id="initialize"),
        pytest.param(IN_THE_WARM_UP, id="warm-up"),
        pytest.param(IN_A_COROUTINE, id="coroutine"),
    ],
)
def test_models_that_import_one_package(site, tmp_path, handler):
    write_two(tmp_path / "models", handler)
    with Server(tmp_path / "models", environment=site) as server:
        check_served(server, "first", "second")


def test_classes_of_models_that_import_one_package(site, tmp_path):
    for module in ("first", "second"):
        folder = tmp_path / "models" / module
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(OF_A_CLASS.format(module=module))
        (folder / "model.yaml").write_text(f"class: net.py:Net\n{VECTOR}")
    with Server(tmp_path / "models", environment=site) as server:
        check_served(server, "first", "second")


def test_models_that_clients_load_together(site, tmp_path):
    write_two(tmp_path / "models", AT_THE_TOP)
    with (
        Server(tmp_path / "models", environment=site, model_control="explicit") as server,
        Client(server.url) as client,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        list(pool.map(client.load, ("first", "second")))
        check_served(server, "first", "second")


def test_package_that_imports_on_another_thread_loads(site, tmp_path):
    write_model(tmp_path / "models", "m", AT_THE_TOP.format(module="thread"), VECTOR)
    with Server(tmp_path / "models", environment=site) as server:
        check_served(server, "m")


NOTES = """
from pathlib import Path

from ksrv import BaseHandler
from tangle import meet


class Notes(BaseHandler):
    def note(self, text):
        with Path(self.context.parameters["file"]).open("a") as file:
            file.write(text)

    def initialize(self, context):
        self.context = context
        self.note("begins ")
        meet()
        self.note("ends ")

    def inference(self, x):
        return {"y": x}
"""


@pytest.mark.parametrize("command", ["check", "serve"])
def test_no_more_models_are_loaded_at_a_time_than_the_setting_says(site, tmp_path, command):
    notes = tmp_path / "notes"
    for name in ("one", "two"):
        write_model(tmp_path / "models", name, NOTES, f"{VECTOR}parameters: {{file: {notes}}}\n")
    if command == "serve":
        with Server(tmp_path / "models", environment=site, parallel_loads=1) as server:
            check_served(server, "one", "two")
    else:
        check = [sys.executable, "-m", "ksrv", "check", "--parallel-loads", "1"]
        subprocess.run([*check, tmp_path / "models"], env=os.environ | site, check=True)
    assert notes.read_text() == "begins ends begins ends "

"""Handlers in one file: `ksrv.serve(...)` from a script, and `ksrv serve FILE.py:NAME`."""

import json
import os
import signal
import urllib.request
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.processes import another_child, children
from tests.support.servers.script_server import ScriptServer
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

BRIGHT = """\
from ksrv import BaseHandler, Float32, Image, serve

class Bright(BaseHandler):
    def inference(self, image: Image[4, 4, 3]) -> Float32[3]:
        return image.mean(axis=(1, 2))

if __name__ == "__main__":
    serve(Bright)
"""

WHERE = """\
from __future__ import annotations

import os
import shift
from ksrv import Bytes, Float32, Int64, serve, settings

ROWS = 4

@settings(batching={{"max_batch_size": ROWS}}, executor="{executor}", instances=1)
def plus(x: Float32[2], batch) -> Float32[2]:
    return x + shift.BY

def words(text: Bytes) -> Int64:
    return [len(one.split()) for one in text]

if __name__ == "__main__":
    serve(plus, {also})
"""


@pytest.fixture
def script(tmp_path):
    """Write a script and the file that it imports."""

    def write(text):
        (tmp_path / "shift.py").write_text("BY = 1\n")
        path = tmp_path / "app.py"
        path.write_text(text)
        return path

    return write


def config(server, model):
    with urllib.request.urlopen(f"{server.url}/v2/models/{model}/config", timeout=20) as answer:
        return json.load(answer)


def infer(server, model, **arrays):
    with Client(server.url) as client:
        return client.infer(model, arrays)


def test_a_script_of_six_lines_serves_its_handler(script):
    image = np.full((1, 4, 4, 3), 7, np.float32)
    with ScriptServer(script(BRIGHT)) as server:
        assert infer(server, "bright", image=image)["output"].tolist() == [[7, 7, 7]]
        with Client(server.url) as client:
            facts = client.metadata("bright")
        assert [one["name"] for one in facts["inputs"]] == ["image"]


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_command_line_serves_the_same_handler(script, executor):
    path = script(WHERE.format(executor=executor, also=""))
    with Server(f"{path}:plus", workers=2) as server:
        x = np.zeros((1, 2), np.float32)
        assert infer(server, "plus", x=x)["output"].tolist() == [[1, 1]]
        assert config(server, "plus")["max_batch_size"] == 4


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_changed_file_is_loaded_anew(script, executor):
    path = script(WHERE.format(executor=executor, also=""))
    x = np.zeros((1, 2), np.float32)
    with ScriptServer(path, reload=True) as server:
        assert infer(server, "plus", x=x)["output"].tolist() == [[1, 1]]
        (path.parent / "shift.py").write_text("BY = 20\n")
        wait_until(lambda: infer(server, "plus", x=x)["output"].tolist() == [[20, 20]])
        wait_until(lambda: "loaded plus in" in server.log)
        assert "changed: shift.py" in server.log
        (path.parent / "shift.py").write_text("BY = \n")
        wait_until(lambda: "SyntaxError" in server.log)
        assert infer(server, "plus", x=x)["output"].tolist() == [[20, 20]]


def test_several_handlers_and_a_folder_are_served_together(script, tmp_path):
    path = script(WHERE.format(executor="process", also="words, '{}'".format(tmp_path / "twice")))
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "handler.py").write_text("def inference(x): return x * 2\n")
    with ScriptServer(path) as server:
        x = np.ones((1, 2), np.float32)
        assert infer(server, "plus", x=x)["output"].tolist() == [[2, 2]]
        assert infer(server, "twice", x=x)["output"].tolist() == [[2, 2]]
        answer = infer(server, "words", text=np.array([b"a b c"], object))
        assert answer["output"].tolist() == [3]


def test_settings_of_the_call_win(script):
    also = "name='kitty', workers=1, batching={'max_batch_size': 2}, server={'access_log': True}"
    with ScriptServer(script(WHERE.format(executor="inline", also=also))) as server:
        x = np.zeros((1, 2), np.float32)
        assert infer(server, "kitty", x=x)["output"].tolist() == [[1, 1]]
        assert config(server, "kitty")["max_batch_size"] == 2
        assert "/v2/models/kitty" in server.log


def test_a_model_is_loaded_and_unloaded_while_it_is_one_file(script):
    path = script(WHERE.format(executor="inline", also=""))
    with Server([f"{path}:plus", f"{path}:words"]) as server, Client(server.url) as client:
        client.unload("plus")
        assert not client.ready("plus")
        (path.parent / "shift.py").write_text("BY = 5\n")
        client.load("plus")
        assert client.ready("plus")
        x = np.zeros((1, 2), np.float32)
        assert client.infer("plus", {"x": x})["output"].tolist() == [[5, 5]]


KEEPS_A_KEY = """\
from ksrv import BaseHandler, Bytes, serve

class Ask(BaseHandler):
    def inference(self, text: Bytes) -> Bytes:
        return [self.context.parameters["api_key"].encode()] * len(text)

if __name__ == "__main__":
    with open("key") as file:
        serve(Ask, parameters={{"api_key": file.read()}}, executor="{executor}", instances=1)
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_parameter_stands_in_no_command_line(script, tmp_path, monkeypatch, executor):
    key = "k-" + uuid.uuid4().hex
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text(key)
    with ScriptServer(script(KEEPS_A_KEY.format(executor=executor))) as server:
        ask = partial(infer, server, "ask", text=["x"])
        assert ask()["output"].tolist() == [key.encode()]
        shown = [path for path in Path("/proc").glob("[0-9]*/cmdline") if key in text_of(path)]
        assert not shown
        # The next program, with the same command line, finds the parameter too.
        workers = set(children(server.pid))
        os.kill(server.pid, signal.SIGUSR2)
        new = another_child(server.pid, workers)
        try:
            wait_until(lambda: server.log.count("ready: True") == 2, tell=lambda: server.log)
            os.kill(server.pid, signal.SIGTERM)
            server.process.wait(60)
            assert ask()["output"].tolist() == [key.encode()]
        finally:
            os.kill(new, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{new}").exists())


def text_of(path):
    """The text of a file of a process, or "" where the process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_module_of_a_package_serves_its_handler(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shift.py").write_text("BY = 3\n")
    text = "from ksrv import Float32, serve\nfrom .shift import BY\n"
    text += "def plus(x: Float32[2]) -> Float32[2]:\n    return x + BY\n"
    (package / "app.py").write_text(text + 'if __name__ == "__main__":\n    serve(plus)\n')
    starter = tmp_path / "start.py"  # as `python -m shop.app` does
    starter.write_text(
        "import runpy\nrunpy.run_module('shop.app', run_name='__main__', alter_sys=True)\n"
    )
    with ScriptServer(starter) as server:
        x = np.zeros((1, 2), np.float32)
        assert infer(server, "plus", x=x)["output"].tolist() == [[3, 3]]


def test_a_script_that_ends_when_it_is_imported_is_the_models_error(script):
    path = script(
        BRIGHT.replace(
            "class Bright",
            "import sys\nif __name__ != '__main__':\n    sys.exit(3)\n\nclass Bright",
        )
    )
    with ScriptServer(path, wait_ready=False) as server:
        wait_until(lambda: "SystemExit: 3 (app.py, line 5)" in server.log, tell=lambda: server.log)

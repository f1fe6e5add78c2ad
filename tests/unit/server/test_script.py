"""`ksrv.serve`: the command for a script, and objects that cannot be served."""

import json
import os
import sys
import types

import pytest

import ksrv
from ksrv import Float32, Image
from ksrv.server.script import CannotServe, serve_command, target_of


class Cats(ksrv.BaseHandler):
    """A handler that workers can import."""


def score(x):
    return x


Renamed = type("Other", (ksrv.BaseHandler,), {})


def command(*handlers, server=None, **settings):
    made = serve_command(*handlers, server=server or {}, settings=settings)
    assert made[:5] == [sys.executable, "-P", "-m", "ksrv", "serve"]
    return made[5:]


def test_settings_of_the_handler_become_json():
    inputs = {"x": Float32[4], "y": Image[2, 2, 3].prepared(datatype="UINT8", resize="linear")}
    flag, text = command(score, batching={"max_batch_size": 2}, inputs=inputs)[1:]
    assert flag == "--model-settings" and text.startswith("@/proc/self/fd/")
    descriptor = int(text.rpartition("/")[2])
    assert os.get_inheritable(descriptor)
    with open(descriptor, "rb") as file:
        file.seek(0)
        found = json.load(file)
    assert found == {
        "batching": {"max_batch_size": 2},
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
            {
                "name": "y",
                "datatype": "UINT8",
                "shape": [-1, 2, 2, 3],
                "image": {"color": "RGB", "channels": "convert", "exif": "apply"},
            },
        ],
    }


@pytest.mark.parametrize(
    ("handlers", "settings", "text"),
    [
        ((), {}, "takes at least one handler"),
        ((3,), {}, "a handler class, a function or a path, not 3"),
        ((lambda x: x,), {}, "<lambda> is not at the top of test_script.py"),
        ((Renamed,), {}, "Other is not at the top of test_script.py under that name"),
        ((Cats, score), {"instances": 2}, "instances is a setting of one handler, and there are 2"),
        ((Cats,), {"parameters": {"x": object()}}, "something else than plain values"),
        ((Cats,), {"parameters": {"x": float("nan")}}, "something else than plain values"),
        ((Cats,), {"inputs": {"x": 3}}, "inputs: expected names with tensor types"),
    ],
)
def test_what_a_server_could_not_find_again_is_refused(handlers, settings, text):
    with pytest.raises(CannotServe, match=text):
        command(*handlers, **settings)


def test_a_local_class_and_a_class_without_a_file_are_refused(monkeypatch):
    class Local(ksrv.BaseHandler):
        pass

    with pytest.raises(CannotServe, match="define it there"):
        target_of(Local)
    console = types.ModuleType("console")
    monkeypatch.setitem(sys.modules, "console", console)
    Local.__module__ = "console"
    with pytest.raises(CannotServe, match="is not in a Python file"):
        target_of(Local)


def test_a_module_that_is_imported_is_not_served(tmp_path, monkeypatch):
    (tmp_path / "unguarded_app.py").write_text(
        "import ksrv\nksrv.serve('nothing/there')\nDONE = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert __import__("unguarded_app").DONE == 1

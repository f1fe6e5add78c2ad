"""A handler written for TorchServe is recognised in a folder, and gets the settings of one in an archive."""

import pytest

from ksrv.dialects.registry import formats
from ksrv.dialects.torchserve.archive.detection import imports_ts
from ksrv.handlers.runner import Runner, make_runner
from ksrv.repository.layout import Repository

HANDLER = """
from ts.torch_handler.base_handler import BaseHandler

class Echo(BaseHandler):
    pass
"""


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "weights.pt").write_bytes(b"")
    (folder / "model.yaml").write_text(
        "handler: handler.py\nmodel: weights.pt\nparameters: {greeting: hello}\n"
    )
    return tmp_path


def test_it_is_recognised_and_gets_a_process(store):
    config = Repository([store], formats()).scan()["echo"].versions[""].config
    assert config.executor == "process"
    assert config.dialect["torchserve"]["manifest"]["model"] == {
        "modelName": "echo",
        "modelVersion": "1.0",
        "handler": "handler.py",
        "serializedFile": "weights.pt",
    }
    assert config.dialect["torchserve"]["config"] == {"greeting": "hello"}
    (store / "echo/model.yaml").write_text("handler: handler.py\nexecutor: inline\n")
    assert Repository([store], formats()).scan()["echo"].versions[""].config.executor == "inline"


def test_a_shared_handler_is_found_from_a_versions_folder(store):
    (store / "echo/2").mkdir()
    (store / "echo/2/weights.pt").write_bytes(b"")
    config = Repository([store], formats()).scan()["echo"].versions["2"].config
    model = config.dialect["torchserve"]["manifest"]["model"]
    assert (model["handler"], model["serializedFile"]) == ("../handler.py", "weights.pt")
    assert model["modelVersion"] == "2"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ts.utils.util import x\n", True),
        ("import ts\n", True),
        ("def f():\n    import ts.context as c\n", True),
        ("import tsfresh\nfrom . import ts\nts = 3\n", False),
        ("from ksrv import BaseHandler\n", False),
        ("def broken(:\n    import ts\n", False),
    ],
)
def test_what_imports_ts(tmp_path, source, found):
    (tmp_path / "h.py").write_text(source)
    assert imports_ts(tmp_path / "h.py") is found
    assert not imports_ts(tmp_path / "none.py")


def test_any_other_handler_keeps_ksrvs_runner(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/handler.py").write_text("def inference(x):\n    return x\n")
    source = Repository([tmp_path], formats()).scan()["m"].versions[""]
    assert (source.config.executor, source.config.dialect) == ("inline", {})
    assert isinstance(make_runner(source), Runner)


def test_a_handler_written_for_torchserve_keeps_its_runner(tmp_path):
    text = "from ts.torch_handler.base_handler import BaseHandler\nclass Old(BaseHandler): pass\n"
    (tmp_path / "app.py").write_text(text)
    [entry] = Repository([f"{tmp_path}/app.py:Old"], formats()).scan().values()
    config = entry.versions[""].config
    assert (config.runner, config.executor) == (
        "ksrv.dialects.torchserve.runner.runner:TorchServeRunner",
        "process",
    )
    assert config.dialect["torchserve"]["manifest"]["model"] == {
        "modelName": "old",
        "modelVersion": "1.0",
        "handler": "app.py",
    }

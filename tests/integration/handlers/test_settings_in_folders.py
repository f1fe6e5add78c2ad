"""`@settings` in the handler of a folder: it fills what model.yaml leaves out, and is never silently without effect."""

import textwrap

import pytest

from ksrv.client import Client
from ksrv.repository.layout import Repository
from ksrv.repository.model_yaml import load_model_config
from ksrv.testing import LoadFailed, Server, load

COUNTS = """
from ksrv import BaseHandler, Float32, settings


@settings(sequences={"max": 3}, parameters={"by": 2}, queue_size=7)
class Counts(BaseHandler):
    def inference(self, x: Float32[1], sequences) -> Float32[1]:
        for row, sequence in enumerate(sequences):
            count = sequence.state.get("count", 0) + self.context.parameters["by"]
            sequence.state["count"] = x[row] = count
        return x
"""


@pytest.fixture
def folder(tmp_path):
    """Write a model's folder."""

    def write(handler, yaml=None, **files):
        made = tmp_path / "models/m"
        made.mkdir(parents=True)
        (made / "handler.py").write_text(textwrap.dedent(handler))
        if yaml is not None:
            (made / "model.yaml").write_text(yaml)
        for name, text in files.items():
            (made / f"{name}.py").write_text(textwrap.dedent(text))
        return made

    return write


@pytest.mark.parametrize(
    "yaml", [None, "handler: handler.py\n", "handler: handler.py:Counts\nqueue_size: 9\n"]
)
def test_a_served_folder_has_the_settings_of_its_handler(folder, yaml):
    made = folder(COUNTS, yaml)
    with Server(made) as server, Client(server.url) as client:
        for number, ends in ((2, {"sequence_start": True}), (4, {}), (6, {"sequence_end": True})):
            answer = client.infer("m", {"x": [[0.0]]}, parameters={"sequence_id": 5, **ends})
            assert answer["output"].tolist() == [[number]]
    assert load_model_config(made).queue_size == (9 if yaml and "9" in yaml else 7)


def test_each_version_has_its_handlers_settings(folder):
    made = folder(COUNTS)
    for version, size in (("1", 11), ("2", 12)):
        (made / version).mkdir()
        text = COUNTS.replace("queue_size=7", f"queue_size={size}")
        (made / version / "handler.py").write_text(text)
    (made / "model.yaml").write_text("handler: handler.py\nversion_policy: all\n")
    entry = Repository([made]).scan()["m"]
    assert [one.config.queue_size for one in entry.versions.values()] == [11, 12]


@pytest.mark.parametrize("target", ["package.part:Counts", "package.part.Counts"])
def test_an_installed_handler_brings_its_settings(folder, tmp_path, monkeypatch, target):
    package = tmp_path / "site/package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')\n")
    (package / "part.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert load_model_config(folder("", f"handler: {target}\n")).queue_size == 7


BASE = """
from ksrv import *


@settings(batching={"max_batch_size": 4}, queue_size=5, parameters={"a": 1})
class Base(BaseHandler):
    def inference(self, x: Float32[1]) -> Float32[1]:
        return x
"""


@pytest.mark.parametrize(
    "handler",
    [
        BASE + "\n@settings(queue_size=6)\nclass Leaf(Base):\n    pass\n",
        "from base import Base\nfrom ksrv import settings\n\n@settings(queue_size=6)\nclass Leaf(Base):\n    pass\n",
        "import base\nfrom ksrv import *\n\n@settings(queue_size=6)\nclass Leaf(base.Base):\n    pass\n",
        "from . import base as b\nfrom ksrv import settings\n\n@settings(queue_size=6)\nclass Leaf(b.Base):\n    pass\n",
        "from base import Base as B\nimport ksrv\n\nclass Middle(B):\n    pass\n\n@ksrv.settings(queue_size=6)\nclass Leaf(Middle):\n    pass\n",
    ],
    ids=["one file", "from", "module", "relative", "middle"],
)
def test_settings_are_inherited(folder, handler):
    made = folder(handler, "handler: handler.py\nparameters: {a: 2}\n", base=BASE)
    config = load_model_config(made)
    assert config.batching.max_batch_size == 4
    assert config.queue_size == 6
    assert config.parameters == {"a": 2}
    with load(made) as model:
        assert model.spec.max_batch_size == 4
        assert model.infer({"x": [[3.0]]})["output"].tolist() == [[3.0]]
    with load(made / "handler.py") as model:  # the file alone has the same
        assert model.spec.max_batch_size == 4


def test_a_class_at_hand_inherits_its_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder of a class without a file, in which nothing may change
    space = {}
    exec(BASE + "\nclass Leaf(Base):\n    pass\n", space)
    with load(space["Leaf"]) as model:
        assert model.spec.max_batch_size == 4


@pytest.mark.parametrize(
    "handler",
    [
        "from late import settings\n\n@settings(queue_size=3)\ndef inference(x): return x\n",
        "import ksrv\ndecorate = ksrv.settings(queue_size=3)\n\n@decorate\ndef inference(x): return x\n",
    ],
)
def test_settings_that_came_too_late_are_refused(folder, handler):
    made = folder(handler, late="from ksrv import settings\n")
    with pytest.raises(
        LoadFailed, match=r"@settings\(queue_size=\.\.\.\) of inference cannot be read"
    ):
        load(made)
    (made / "model.yaml").write_text("handler: handler.py\nqueue_size: 3\n")
    with load(made) as model:
        assert model.infer({"x": [[1.0]]})["output"].tolist() == [[1.0]]

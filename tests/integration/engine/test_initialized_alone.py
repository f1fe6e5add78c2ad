"""Handlers of models that are loaded side by side are initialized one at a time; all else of their loads is not."""

import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import VECTOR, write_model

pytestmark = pytest.mark.long

SWITCHES = """
import threading

both = threading.Barrier(2)
off = False


def meet(seconds):
    try:
        both.wait(seconds)
        return True
    except threading.BrokenBarrierError:
        return False


def from_pretrained():
    global off
    assert not off, "another thread has switched the package off"
    off = True
    meet(2)
    off = False
"""

OF_ITS_OWN = """
import switches
from ksrv import BaseHandler


class Own(BaseHandler):
    def initialize(self, context):
        switches.from_pretrained()

    def inference(self, x):
        return {"y": x}
"""

MADE = """
import switches
from ksrv import BaseHandler


class Made(BaseHandler):
    def __init__(self):
        switches.from_pretrained()

    def inference(self, x):
        return {"y": x}
"""

WITH_THE_DEFAULT = """
from ksrv import BaseHandler


class Default(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
"""

NET = """
import switches
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        switches.from_pretrained()

    def forward(self, x):
        return x
"""

MEETING_NET = """
import switches
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x

    def eval(self):
        assert switches.meet(60), "the other model is not loaded meanwhile"
        return super().eval()
"""

MEETING_WARM_UP = """
import switches

met = False


def inference(x):
    global met
    assert met or switches.meet(60), "the other model is not warmed up meanwhile"
    met = True
    return {"y": x}
"""

WAITING = """
import switches
from ksrv import BaseHandler


class Waiting(BaseHandler):
    def initialize(self, context):
        assert switches.meet(60), "the other model is not initialized meanwhile"

    def inference(self, x):
        return {"y": x}
"""


@pytest.fixture
def served(tmp_path):
    """Serve two models of one form, which must answer."""

    def serve(handler=None, net=None, settings=""):
        (tmp_path / "site").mkdir()
        (tmp_path / "site/switches.py").write_text(SWITCHES)
        for name in ("one", "two"):
            folder = tmp_path / "models" / name
            if handler is not None:
                write_model(tmp_path / "models", name, handler, VECTOR + settings)
            if net is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "net.py").write_text(net)
                kept = "handler: handler.py\n" if handler is not None else ""
                (folder / "model.yaml").write_text(f"{kept}class: net.py:Net\n{VECTOR}{settings}")
        site = {"PYTHONPATH": str(tmp_path / "site")}
        with Server(tmp_path / "models", environment=site) as server, Client(server.url) as client:
            for name in ("one", "two"):
                (answer,) = client.infer(name, {"x": [[1, 2, 3, 4]]}).values()
                assert answer.tolist() == [[1, 2, 3, 4]]
            assert "ERROR" not in server.log and "not warmed up" not in server.log, server.log
            return server.log

    return serve


@pytest.mark.parametrize("handler", [OF_ITS_OWN, MADE], ids=["initialize", "__init__"])
def test_one_handler_is_initialized_at_a_time(served, handler):
    served(handler)


def test_one_class_is_made_at_a_time(served):
    served(net=NET)


def test_instances_are_initialized_one_at_a_time(served):
    served(OF_ITS_OWN, settings="instances: 2\n")


@pytest.mark.differs_in_processes("the models meet in one interpreter")
@pytest.mark.parametrize("handler", [None, WITH_THE_DEFAULT], ids=["none", "super"])
def test_weights_are_loaded_side_by_side(served, handler):
    served(handler, net=MEETING_NET)


@pytest.mark.differs_in_processes(
    "each handler process has a separate interpreter, so nothing is shared"
)
def test_models_are_warmed_up_side_by_side(served):
    served(MEETING_WARM_UP)


@pytest.mark.differs_in_processes(
    "each handler process has a separate interpreter, so nothing is shared"
)
def test_a_handler_that_waits_is_not_waited_for(served):
    log = served(WAITING, settings="start_timeout_ms: 500\n")
    assert "begins beside that of" in log

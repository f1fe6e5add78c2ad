"""A worker shortens Python's switch interval, so that a busy handler delays other models' requests less."""

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import write_model

HANDLER = """
import sys
import numpy as np
import pytest
from ksrv import BaseHandler

class Interval(BaseHandler):
    def inference(self, x):
        return {"y": np.full_like(x, sys.getswitchinterval())}
"""
TENSORS = (
    "inputs: [{name: x, datatype: FP64, shape: [-1]}]\n"
    "outputs: [{name: y, datatype: FP64, shape: [-1]}]\n"
)


@pytest.mark.differs_in_processes("the handler reads the interval of a handler process")
def test_worker_shortens_the_switch_interval(tmp_path):
    write_model(tmp_path, "interval", HANDLER, TENSORS)
    with Server(tmp_path) as server, Client(server.http) as client:
        assert client.infer("interval", {"x": np.zeros(1)})["y"][0] == 0.002

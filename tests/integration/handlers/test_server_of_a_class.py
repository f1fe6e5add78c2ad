"""`ksrv.testing.Server` with a class or a function of a file, as a test of a handler has it."""

import pytest

from ksrv import BaseHandler, Float32
from ksrv.client import Client
from ksrv.server.script import CannotServe
from ksrv.testing import Server


class Scale(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        return x * self.context.parameters["factor"]


def double(x: Float32[2]) -> Float32[2]:
    return x * 2


def test_classes_and_functions_are_served():
    settings = {"parameters": {"factor": 3}}
    with Server(Scale, handler_settings=settings) as server, Client(server.url) as client:
        assert client.infer("scale", [1, 2])["output"].tolist() == [[3, 6]]
    with Server([double]) as server, Client(server.url) as client:
        assert client.infer("double", [1, 2])["output"].tolist() == [[2, 4]]


def test_handler_that_no_worker_can_find_is_refused():
    with pytest.raises(CannotServe, match="not at the top"):
        Server(lambda x: x)
    with pytest.raises(CannotServe, match="a handler class, a function or a path, not 3"):
        Server([3])

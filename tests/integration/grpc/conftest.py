"""Tests in this folder run against both gRPC servers, unless a test is marked for one of them."""

import pytest

from tests.support.engine.held_engine import HeldEngine, write_models
from tests.support.missing_tools import need_http2
from tests.support.wire import grpc_calls


@pytest.fixture(autouse=True, params=sorted(grpc_calls.SERVERS))
def carrier(request, monkeypatch):
    """The gRPC server implementation of this test."""
    wanted = request.node.get_closest_marker("carrier")
    if wanted is not None and request.param not in wanted.args:
        pytest.skip(f"this is about {wanted.args[0]}")
    if request.param == "native":
        need_http2()
    monkeypatch.setattr(grpc_calls, "tested", request.param)
    return request.param


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The models of the engine."""
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return root


@pytest.fixture
def engine(models):
    made = HeldEngine(models)
    made.start()
    yield made
    made.close(5)

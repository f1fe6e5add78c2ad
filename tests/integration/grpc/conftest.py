"""Tests in this folder run against the native gRPC server; a test marked `grpcio` also against grpcio's."""

import pytest

from tests.support.engine.held_engine import HeldEngine, write_models
from tests.support.missing_tools import need_http2
from tests.support.wire import grpc_calls


def pytest_generate_tests(metafunc):
    also = metafunc.definition.get_closest_marker("grpcio")
    metafunc.parametrize("carrier", ["native", "grpcio"] if also else ["native"], indirect=True)


@pytest.fixture(autouse=True)
def carrier(request, monkeypatch):
    """The gRPC server implementation of this test."""
    if request.param == "native":
        need_http2()
    monkeypatch.setattr(grpc_calls, "tested", request.param)


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

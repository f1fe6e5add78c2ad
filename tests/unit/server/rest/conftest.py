"""The fast path, and a server without it. The fixture `engine` of each test file has the model."""

import pytest

from tests.support.native.fast_path import opened


@pytest.fixture(scope="module")
def fast(engine):
    with opened(engine) as http_server:
        yield http_server


@pytest.fixture(scope="module")
def general(engine):
    with opened(engine, endpoints=False) as http_server:
        yield http_server

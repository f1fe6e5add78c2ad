"""Connections of HTTP/2 under the sanitizers: gRPC and REST side by side, driven by threads without Python."""

import pytest

from tests.support.native.programs import run_program


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["thread", "sanitize"])
def test_streams_of_several_clients_are_all_answered(flavour):
    assert "0 left" in run_program(flavour, "http2_connections.cpp", "10")

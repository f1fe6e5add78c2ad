"""The HTTP server's races, each held still in a program without Python."""

from tests.support.native.programs import run_program


def test_the_races_of_the_http_server_are_decided():
    assert "0 races" in run_program("sanitize", "http_server_races.cpp")

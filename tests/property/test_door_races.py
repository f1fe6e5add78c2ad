"""The door's races, each held still in a program without Python."""

from tests.support.native.programs import run_program


def test_the_races_of_the_door_are_decided():
    assert "0 races" in run_program("sanitize", "door_races.cpp")

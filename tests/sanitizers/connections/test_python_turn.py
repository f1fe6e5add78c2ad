"""How protocols share visits to Python, in programs without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["thread", "sanitize"])
def test_empty_list_of_decrefs_asks_for_no_visit(flavour):
    assert run_program(flavour, "connections/pending_decrefs.cpp", "100000") == "0 stuck, 0 lost\n"

"""The way of batches to handler processes and back, under the sanitizers, with deaths and garbage."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["thread", "sanitize"])
def test_batches_reach_processes_and_return(flavour):
    assert "0 open" in run_program(flavour, "batch_dispatch.cpp", "300")

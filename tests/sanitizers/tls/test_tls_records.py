"""TLS in programs without Python: records that arrive in pieces or without data, and tickets of sessions."""

import pytest

from tests.support.certificates import self_signed
from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return [str(path) for path in self_signed(tmp_path_factory.mktemp("certificate"))]


def test_log_records_are_complete_or_missing(files):
    assert "0 faults" in run_program("sanitize", "tls/tls_records.cpp", *files)


@pytest.mark.parametrize("flavour", ["sanitize", "thread"])
def test_session_tickets_expire_with_their_keys(files, flavour):
    assert "0 faults" in run_program(flavour, "tls/tls_tickets.cpp", *files)

"""TLS in programs without Python: records that come in pieces or without data, and the turns of connections."""

import re

import pytest

from tests.support.certificates import self_signed
from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return [str(path) for path in self_signed(tmp_path_factory.mktemp("certificate"))]


def test_log_records_are_complete_or_missing(files):
    assert "0 faults" in run_program("sanitize", "tls/tls_records.cpp", *files)


def test_message_in_many_records_is_received_in_turns(files):
    printed = run_program("sanitize", "tls/tls_turns.cpp", *files)
    served = dict(re.findall(r"(\S+): served (\d+) times", printed))
    assert int(served["HTTP/1.1"]) >= 5  # of about ten turns
    assert "gRPC" not in served or int(served["gRPC"]) >= 5


@pytest.mark.parametrize("flavour", ["sanitize", "thread"])
def test_session_tickets_expire_with_their_keys(files, flavour):
    assert "0 faults" in run_program(flavour, "tls/tls_tickets.cpp", *files)

"""TLS over sockets that take little at a time, in a program without Python."""

from tests.support.certificates import self_signed
from tests.support.native.programs import run_program


def test_records_come_whole_or_not_at_all(tmp_path):
    key, cert = self_signed(tmp_path)
    assert "0 faults" in run_program("sanitize", "tls_records.cpp", str(key), str(cert))

"""OpenSSL for the native servers: its declarations, and contexts with invalid settings."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ksrv._native.tls.tls_context import TlsContext
from tests.support.certificates import self_signed
from tests.support.paths import ROOT


def test_declarations_match_the_headers():
    if not Path("/usr/include/openssl/ssl.h").exists() or shutil.which("g++") is None:
        pytest.skip("needs g++ and OpenSSL's headers")
    source = Path(__file__).with_name("openssl_declarations.cpp")
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{ROOT / 'native'}", str(source)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    key, cert = self_signed(folder)
    other, _ = self_signed(folder, "other")
    text = folder / "text"
    text.write_text("no certificate")
    return {"key": str(key), "chain": str(cert), "other": str(other), "text": str(text)}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"chain": "text"}, "the certificate: "),
        ({"chain": "nowhere"}, "the certificate: "),
        ({"key": "text"}, "the key: "),
        ({"key": "other"}, "the key: .*mismatch"),
        ({"authority": "text"}, "the authority of clients: "),
    ],
)
def test_unusable_files_are_reported(files, wrong, told):
    given = {"chain": "chain", "key": "key"} | wrong
    with pytest.raises(ValueError, match=f"^TLS: {told}"):
        TlsContext(**{name: files.get(file, file) for name, file in given.items()})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ciphers": "NO-SUCH-CIPHER"}, "the ciphers: "),
        ({"least_version": 0x9999}, "the least version of TLS: "),
        ({"protocols": ["x" * 256]}, "no length from 1 to 255"),
        ({"protocols": [""]}, "no length from 1 to 255"),
    ],
)
def test_unusable_rules_are_reported(files, wrong, told):
    with pytest.raises(ValueError, match=told):
        TlsContext(files["chain"], files["key"], **wrong)

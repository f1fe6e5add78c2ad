"""The TLS files in the settings, and the errors for files that cannot be used."""

import os
import ssl
import subprocess
import time
from types import SimpleNamespace

import pytest

from ksrv.server.launch import tls
from ksrv.server.settings import ServerSettings, SettingsError
from tests.support.certificates import self_signed


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    key, cert = self_signed(folder)
    other, _ = self_signed(folder, "other")
    whole = folder / "whole.pem"
    whole.write_bytes(cert.read_bytes() + key.read_bytes())
    closed = folder / "closed.key"
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-in", key, "-out", closed, "-passout", "pass:secret"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    paths = {"key": key, "cert": cert, "other": other, "whole": whole, "closed": closed}
    return {name: str(path) for name, path in paths.items()} | {"none": str(folder / "none.pem")}


def config(files, cert, key=None, ca=None, reqs=0):
    """A gunicorn configuration with some of the files."""
    return SimpleNamespace(
        is_ssl=bool(cert or key),
        certfile=files.get(cert),
        keyfile=files.get(key),
        ca_certs=files.get(ca),
        cert_reqs=reqs,
        ciphers=None,
        http_protocols=["h1"],
    )


@pytest.mark.timeout(30)
@pytest.mark.parametrize("names", [{"cert": "pipe"}, {"cert": "cert", "key": "pipe"}])
def test_a_pipe_without_a_writer_is_refused_at_once(files, tmp_path, names):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="cannot be used"):
        tls.read_certificates(config(files | {"pipe": str(tmp_path / "pipe")}, **names))


def dated(folder, days):
    """A certificate and its chain, valid for `days` days."""
    paths = [folder / name for name in ("ca.key", "ca.pem", "key", "request", "cert")]
    authority_key, authority, key, request, cert = map(str, paths)
    for command in (
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", authority_key, "-out",
         authority, "-days", "3", "-subj", "/CN=authority"],
        ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=x"],
        ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-out", cert,
         "-CAcreateserial", "-days", str(days)],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)
    text = f"a comment\n{paths[4].read_text()}{paths[1].read_text()}{paths[2].read_text()}"
    (folder / "chain.pem").write_text(text)
    return {"chain": str(folder / "chain.pem")}


def test_when_the_servers_own_certificate_ends(files, tmp_path):
    for days in (1, 40, 20_000):  # dates after 2049 have another format
        paths, name = (files, "whole") if days == 1 else (dated(tmp_path, days), "chain")
        made = config(paths, name)
        said = subprocess.run(
            ["openssl", "x509", "-in", made.certfile, "-noout", "-enddate"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        expiry = tls.Certificates(made).expiry
        assert expiry == ssl.cert_time_to_seconds(said.stdout.strip()[9:])
        assert abs(expiry - time.time() - days * 86_400) < 3600


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {"cert": None, "key": "key"},
            "there is a key, but no certificate .*; name it with --tls-cert",
        ),
        ({"cert": "none", "key": "key"}, r"none\.pem and .*server\.key cannot be used"),
        (
            {"cert": "cert"},
            r"server\.pem cannot be used.*server\.pem holds no key: name its file with --tls-key",
        ),
        ({"cert": "cert", "key": "other"}, "mismatch"),
        ({"cert": "cert", "key": "closed"}, "without a password"),
        ({"cert": "whole", "ca": "none"}, r"none\.pem cannot be used"),
        ({"cert": "whole", "ca": "key"}, r"server\.key cannot be used"),
        ({"cert": "whole", "reqs": 2}, "no authority"),
    ],
)
def test_files_that_do_not(files, names, said):
    with pytest.raises(SettingsError, match=f"TLS: .*{said}"):
        tls.read_certificates(config(files, **names))


def test_what_the_native_openssl_refuses_is_told_as_the_files_are_read(files, monkeypatch):
    def refuse(*rules, **more):
        raise ValueError("TLS: the certificate: made for this test")

    monkeypatch.setattr(tls, "TlsContext", refuse)
    with pytest.raises(SettingsError, match="TLS: the certificate: made for this test"):
        tls.read_certificates(config(files, "whole"))


@pytest.mark.parametrize("key", ["tls_key", "tls_client_ca"])
def test_a_certificate_is_needed(key):
    with pytest.raises(SettingsError, match=f"'{key}': it needs tls_cert"):
        tls.gunicorn_options(ServerSettings(**{key: "file"}))

"""`ksrv check --signature`: models as their signer left them, and others, whose code never runs."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.models import write_double

signing = pytest.importorskip("model_signing.signing")


def openssl(*words, folder):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("signer", "other"):
        openssl(
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            f"{name}.key",
            folder=folder,
        )
        openssl("ec", "-in", f"{name}.key", "-pubout", "-out", f"{name}.pub", folder=folder)
        openssl(
            "req", "-x509", "-new", "-key", f"{name}.key", "-subj", f"/CN={name} authority", "-days", "2",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
            "-out", f"{name}-ca.pem", folder=folder,
        )  # fmt: skip
    (folder / "extensions").write_text(
        "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=critical,codeSigning\nsubjectKeyIdentifier=hash\n"
    )
    openssl(
        "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "leaf.key", folder=folder
    )
    openssl(
        "req", "-new", "-key", "leaf.key", "-subj", "/CN=leaf", "-out", "leaf.csr", folder=folder
    )
    openssl(
        "x509", "-req", "-in", "leaf.csr", "-CA", "signer-ca.pem", "-CAkey", "signer.key", "-days", "2",
        "-extfile", "extensions", "-CAcreateserial", "-out", "leaf.pem", folder=folder,
    )  # fmt: skip
    return folder


@pytest.fixture
def model(tmp_path):
    folder = write_double(tmp_path)
    handler = folder / "handler.py"
    handler.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + handler.read_text())
    return folder


@pytest.fixture
def signature(model, keys, tmp_path):
    config = signing.Config().use_elliptic_key_signer(private_key=keys / "signer.key")
    config.sign(model, tmp_path / "model.sig")
    return tmp_path / "model.sig"


def check(*words):
    return CliRunner().invoke(main, ["check", *map(str, words)])


def test_signed_model_is_checked(model, signature, keys, tmp_path):
    done = check(model, "--signature", signature, "--signed-by", keys / "signer.pub", "--json")
    assert done.exit_code == 0, done.output
    assert f"{model} is as {signature} signs it" in done.stderr
    assert json.loads(done.stdout)["models"][0]["ok"]
    assert (tmp_path / "ran").exists()


def test_certificate_of_a_trusted_authority(model, keys, tmp_path):
    config = signing.Config().use_certificate_signer(
        private_key=keys / "leaf.key",
        signing_certificate=keys / "leaf.pem",
        certificate_chain=[keys / "signer-ca.pem"],
    )
    config.sign(model, tmp_path / "model.sig")
    words = (model, "--signature", tmp_path / "model.sig", "--signed-by")
    assert check(*words, keys / "signer-ca.pem").exit_code == 0
    (tmp_path / "ran").unlink()
    assert check(*words, keys / "other-ca.pem").exit_code == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("change", ["changed", "added", "removed", "link"])
def test_code_of_another_model_does_not_run(model, signature, keys, tmp_path, change):
    if change == "changed":
        with (model / "handler.py").open("a") as opened:
            opened.write("\n")
    elif change == "added":
        (model / "extra.py").touch()
    elif change == "removed":
        (model / "model.yaml").unlink()
    else:
        (model / "link").symlink_to("/etc/passwd")
    done = check(model, "--signature", signature, "--signed-by", keys / "signer.pub")
    assert done.exit_code == 1 and f"{model} is not as {signature} signs it" in done.output
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["", "{}", "nonsense", "[" * 5000, '{"mediaType": 1}', "\0"])
def test_damaged_signature_is_refused(model, signature, keys, tmp_path, text):
    signature.write_text(text)
    done = check(model, "--signature", signature, "--signed-by", keys / "signer.pub")
    assert done.exit_code == 1 and "is not as" in done.output
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("signer", ["other.pub", "signer.key", "extensions", "none", "leaf.pem"])
def test_other_key_is_refused(model, signature, keys, tmp_path, signer):
    done = check(model, "--signature", signature, "--signed-by", keys / signer)
    assert done.exit_code == 1 and "is not as" in done.output
    assert not (tmp_path / "ran").exists()


def test_key_needs_no_network(model, signature, keys, monkeypatch):
    def refused(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)
    done = check(model, "--signature", signature, "--signed-by", keys / "signer.pub")
    assert done.exit_code == 0, done.output


def test_identity_is_sigstores_and_uses_the_network(model, signature, tmp_path, monkeypatch):
    asked = []

    def noted(self, *, identity, oidc_issuer):
        asked.append((identity, oidc_issuer))
        raise OSError("no network")

    monkeypatch.setattr("model_signing.verifying.Config.use_sigstore_verifier", noted)
    done = check(model, "--signature", signature, "--signed-by", "me@example.com,https://issuer")
    assert done.exit_code == 1 and "no network" in done.output
    assert asked == [("me@example.com", "https://issuer")]
    assert not (tmp_path / "ran").exists()


def test_pulled_folder_keeps_its_signature(model, keys, signature, tmp_path):
    """The lock file is beside the folder: in it, it would be a file that nobody signed."""
    layout = tmp_path / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    program = """
import hashlib, io, json, sys, tarfile
from pathlib import Path
layout, model = map(Path, sys.argv[1:])
def blob(data):
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}"}
data = io.BytesIO()
with tarfile.open(fileobj=data, mode="w") as archive:
    for file in model.iterdir():
        archive.add(file, file.name)
manifest = blob(json.dumps({"layers": [blob(data.getvalue())]}).encode())
(layout / "index.json").write_text(json.dumps({"manifests": [manifest]}))
"""
    subprocess.run([sys.executable, "-c", program, str(layout), str(model)], check=True, timeout=60)
    folder = tmp_path / "pulled" / model.name
    assert CliRunner().invoke(main, ["pull", f"oci:{layout}", str(folder)]).exit_code == 0
    done = check(folder, "--signature", signature, "--signed-by", keys / "signer.pub")
    assert done.exit_code == 0, done.output
    assert os.listdir(folder.parent) != [folder.name]

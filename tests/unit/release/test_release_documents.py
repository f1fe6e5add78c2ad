"""VEX, provenance, checksums and signatures, which tools/release adds to the files of a release."""

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
import zipfile

import pytest

from ksrv import __version__
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROWS = tomllib.loads((ROOT / "tools/release/advisories.toml").read_text())["advisory"]
WHEEL = f"ksrv-{__version__}-cp311-cp311-manylinux_2_35_x86_64.whl"
ARCHIVE = f"ksrv-{__version__}.tar.gz"
NGHTTP2 = {
    "type": "library", "bom-ref": "pkg:deb/debian/libnghttp2-14@1.52.0", "name": "nghttp2",
    "version": "1.52.0", "purl": "pkg:deb/debian/libnghttp2-14@1.52.0", "hashes": [],
}  # fmt: skip


def command_of(page):
    [command] = re.findall(r"^(openssl pkeyutl -verify .*)$", page, re.MULTILINE)
    return command


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["ids"][0])
def test_advisory_has_evidence_in_the_repository(row):
    assert all(re.fullmatch(r"CVE-\d{4}-\d{4,}", number) for number in row["ids"])
    assert (row["state"] == "not_affected") == ("justification" in row)
    assert row["evidence"] and all((ROOT / path).exists() for path in row["evidence"])


def test_each_advisory_of_the_security_page_has_one_answer(tool):
    rows = tool("vex").advisories()
    numbers = [number for row in rows for number in row["ids"]]
    assert len(numbers) == len(set(numbers))
    page = (ROOT / "docs/security.md").read_text()
    assert set(re.findall(r"CVE-\d{4}-\d+", page)) <= set(numbers)
    assert all((ROOT / path).exists() for row in rows for path in row["evidence"])


def test_answer_in_a_table_names_attack_answer_and_test(tool):
    [row] = [row for row in tool("vex").advisories() if "CVE-2023-43654" in row["ids"]]
    assert row["of"] == "TorchServe" and row["evidence"] == ["tests/advisories/test_code.py"]
    assert row["detail"].startswith("The attack: a model's URL") and "not fetched" in row["detail"]
    [row] = [row for row in tool("vex").advisories() if "CVE-2024-27318" in row["ids"]]
    assert row["evidence"] == ["tests/unit/loaders/test_onnx_external.py"]
    assert "ksrv's answer" not in row["detail"]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["state"] == "resolved"], ids=lambda row: row["ids"][0]
)
def test_resolved_advisory_names_the_oldest_version_that_is_allowed(row):
    name = row["package"].rpartition("/")[2]
    extras = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    [least] = {
        re.search(r">=([\d.]+)", one)[1]
        for one in [*PROJECT["dependencies"], *extras]
        if re.match(rf"{name}[<>=]", one)
    }
    assert re.search(rf"requires {re.escape(least)},", row["detail"])


def test_vex_names_the_packages_of_the_release(tool):
    document = tool("vex").vex("0.1.0", 1767225600, [NGHTTP2])
    found = {one["id"]: one for one in document["vulnerabilities"]}
    refs = [one["ref"] for one in found["CVE-2026-27135"]["affects"]]
    assert refs == ["pkg:pypi/ksrv@0.1.0", NGHTTP2["purl"]]
    assert [one["purl"] for one in document["components"]] == [NGHTTP2["purl"]]
    assert found["CVE-2026-27135"]["analysis"]["state"] == "not_affected"
    pytest.importorskip("jsonschema")
    validation = pytest.importorskip("cyclonedx.validation.json")  # make test-release installs it
    from cyclonedx.schema import SchemaVersion

    validator = validation.JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def dist(tmp_path):
    """A folder with an archive, a wheel, and their provenance from the last commit."""
    if not (ROOT / ".git").exists() or shutil.which("openssl") is None:
        pytest.skip("needs git's folder and openssl")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / ARCHIVE).write_bytes(b"sources")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        bill = json.dumps({"components": [NGHTTP2]})
        wheel.writestr("ksrv-0.1.0.dist-info/sboms/ksrv.cdx.json", bill)
    (folder / f"ksrv-{__version__}.runtime.cdx.json").write_text('{"components": []}')
    for name in (ARCHIVE, WHEEL):
        digest = {"sha256": sha256((folder / name).read_bytes())}
        statement = {
            "subject": [{"name": name, "digest": digest}],
            "predicate": {"buildDefinition": {"externalParameters": {"commit": commit}}},
        }
        (folder / f"{name}.provenance.json").write_text(json.dumps(statement))
    return folder


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def verify(folder):
    command = command_of((ROOT / "SECURITY.md").read_text())
    return subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )


def test_documented_command_accepts_a_release_and_refuses_each_change(tool, dist, key):
    release = tool("release")
    release.complete(dist, release.Key(str(key)))
    done = verify(dist)
    assert done.returncode == 0, done.stderr
    names = [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()]
    assert {ARCHIVE, WHEEL, f"{WHEEL}.intoto.jsonl", f"ksrv-{__version__}.vex.cdx.json"} <= set(
        names
    )
    for name in [*names, "SHA256SUMS"]:
        before = (dist / name).read_bytes()
        (dist / name).write_bytes(before + b"\n")
        assert verify(dist).returncode != 0, name
        (dist / name).write_bytes(before)
    assert verify(dist).returncode == 0


def test_envelope_is_signed_over_its_type_and_payload(tool, dist, key, tmp_path):
    release = tool("release")
    release.complete(dist, release.Key(str(key)))
    dsse = pytest.importorskip("securesystemslib.dsse")  # make test-release installs it
    from securesystemslib.signer import SSlibKey

    public = (dist / "ksrv-release.pub").read_text()
    envelope = dsse.Envelope.from_dict(json.loads((dist / f"{WHEEL}.intoto.jsonl").read_text()))
    trusted = SSlibKey(
        next(iter(envelope.signatures)), "ed25519", "ed25519", {"public": _raw(public)}
    )
    assert envelope.verify([trusted], 1)
    assert json.loads(envelope.payload)["subject"][0]["name"] == WHEEL
    envelope.payload += b" "
    with pytest.raises(Exception, match=r"[Ss]ignature"):
        envelope.verify([trusted], 1)


def _raw(public):
    """Return an Ed25519 key's 32 bytes: the end of what PEM encodes."""
    import base64

    return base64.b64decode("".join(public.splitlines()[1:-1]))[-32:].hex()


def test_a_signed_release_is_the_same_again(tool, dist, key):
    release = tool("release")
    release.complete(dist, release.Key(str(key)))
    first = {path.name: path.read_bytes() for path in dist.iterdir()}
    release.complete(dist, release.Key(str(key)))
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == first


def test_release_without_a_key_has_checksums_and_no_signature(tool, dist, capsys):
    tool("release").complete(dist, None)
    assert "not signed" in capsys.readouterr().out
    assert (dist / "SHA256SUMS").exists()
    assert not list(dist.glob("*.sig")) and not list(dist.glob("*.intoto.jsonl"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda folder: (folder / WHEEL).write_bytes(b"another"), "is about another"),
        (lambda folder: (folder / f"{WHEEL}.provenance.json").unlink(), "has no provenance"),
    ],
)
def test_wheel_that_its_provenance_does_not_cover_is_refused(tool, dist, change, text):
    change(dist)
    with pytest.raises(SystemExit, match=text):
        tool("release").complete(dist, None)


def test_wheel_of_another_commit_is_refused(tool, dist):
    path = dist / f"{WHEEL}.provenance.json"
    statement = json.loads(path.read_text())
    statement["predicate"]["buildDefinition"]["externalParameters"]["commit"] = "an-older-one"
    path.write_text(json.dumps(statement))
    with pytest.raises(SystemExit, match="was built from commit an-older-one, and this is"):
        tool("release").complete(dist, None)


def test_key_that_is_not_ed25519_is_refused(tool, tmp_path):
    path = tmp_path / "rsa"
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SystemExit, match="is not an Ed25519 key"):
        tool("release").Key(str(path))
    with pytest.raises(SystemExit, match="RELEASE_KEY"):
        tool("release").Key(str(tmp_path / "missing"))

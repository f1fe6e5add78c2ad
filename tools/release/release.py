"""Completes a release: the VEX document, checksums and signatures of the files that `make dist` has built.

    python3 tools/release/release.py dist

The folder may also have wheels, and their provenance, that other machines have built from the same commit. The file
that RELEASE_KEY names (an Ed25519 key in PEM) signs the checksums and each provenance; without it the release is not
signed. openssl is needed.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from dist import ROOT, Commit
from vex import vex

PAYLOAD = "application/vnd.in-toto+json"
SUMS = "SHA256SUMS"


def fail(text: str) -> None:
    sys.exit(f"error: {text}")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_provenance(file: Path, commit: Commit) -> None:
    """End the release if a file has no provenance, or was built from another commit."""
    provenance = file.with_name(f"{file.name}.provenance.json")
    if not provenance.exists():
        fail(f"{file.name} has no provenance; build it with `make dist`")
    statement = json.loads(provenance.read_text())
    [subject] = statement["subject"]
    if (subject["name"], subject["digest"]["sha256"]) != (file.name, sha256(file)):
        fail(f"{provenance.name} is about another {file.name}")
    built_from = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]
    if built_from != commit.name:
        fail(f"{file.name} was built from commit {built_from}, and this is {commit.name}")


def bill_in(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/sboms/ksrv.cdx.json")]
        return dict(json.loads(archive.read(name)))


class Key:
    """An Ed25519 key. Its signatures are the same each time, so a signed release can be built again."""

    def __init__(self, path: str) -> None:
        self.path = path
        if "ED25519" not in self.openssl("pkey", "-in", path, "-noout", "-text").decode():
            fail(f"RELEASE_KEY: {path} is not an Ed25519 key: openssl genpkey -algorithm ed25519")
        self.public = self.openssl("pkey", "-in", path, "-pubout")
        der = self.openssl("pkey", "-in", path, "-pubout", "-outform", "DER")
        self.id = hashlib.sha256(der).hexdigest()

    def openssl(self, *command: str) -> bytes:
        done = subprocess.run(["openssl", *command], capture_output=True, check=False)
        if done.returncode != 0:
            fail(f"RELEASE_KEY: {done.stderr.decode()}")
        return done.stdout

    def sign(self, message: bytes) -> bytes:
        with tempfile.NamedTemporaryFile() as file:
            file.write(message)
            file.flush()
            return self.openssl("pkeyutl", "-sign", "-inkey", self.path, "-rawin", "-in", file.name)

    def envelope(self, statement: bytes) -> str:
        """Return the DSSE envelope of an in-toto statement, as one line."""
        signed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(statement), statement)
        signature = {"keyid": self.id, "sig": base64.b64encode(self.sign(signed)).decode()}
        payload = base64.b64encode(statement).decode()
        envelope = {"payloadType": PAYLOAD, "payload": payload, "signatures": [signature]}
        return json.dumps(envelope) + "\n"


def complete(folder: Path, key: Key | None) -> None:
    """Write what the release lacks into its folder."""
    commit = Commit()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    wheels = sorted(folder.glob(f"ksrv-{version}-*.whl"))
    archive = folder / f"ksrv-{version}.tar.gz"
    for file in (archive, *wheels):
        check_provenance(file, commit)
    runtime = folder / f"ksrv-{version}.runtime.cdx.json"
    bills = [*map(bill_in, wheels), json.loads(runtime.read_text())]
    packages = [entry for bill in bills for entry in bill["components"] if "purl" in entry]
    document = folder / f"ksrv-{version}.vex.cdx.json"
    document.write_text(json.dumps(vex(version, int(commit.epoch), packages), indent=1) + "\n")
    files = [archive, *wheels, runtime, document]
    for file in (archive, *wheels):
        provenance = folder / f"{file.name}.provenance.json"
        files.append(provenance)
        if key:
            files.append(folder / f"{file.name}.intoto.jsonl")
            files[-1].write_text(key.envelope(provenance.read_bytes()))
    files.sort()
    sums = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
    (folder / SUMS).write_text(sums)
    if key:
        (folder / f"{SUMS}.sig").write_bytes(key.sign(sums.encode()))
        (folder / "ksrv-release.pub").write_bytes(key.public)
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file}")
    print(f"signed by the key {key.id}" if key else "not signed: RELEASE_KEY names no key")


if __name__ == "__main__":
    named = os.environ.get("RELEASE_KEY")
    complete(Path(sys.argv[1]), Key(named) if named else None)

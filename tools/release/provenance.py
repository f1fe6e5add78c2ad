"""Writes the provenance of a file of a release: an in-toto statement with SLSA's predicate (v1).

    python tools/release/provenance.py dist/ksrv-0.1.0.tar.gz COMMIT

The interpreter is that which built the file, in the environment of deploy/requirements/build.lock. The statement has no
times and no paths, so that a second build on an equal machine writes the same bytes. RELEASE_BUILDER is the URI of who
builds; without it, the statement says that nobody answers for the machine.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

from origin import compiler, library, package_of, run

BUILD_TYPE = "urn:ksrv:make-dist:v1"
NOBODY = "urn:ksrv:builder:unnamed"
LIBRARIES = ("libc.so.6", "libstdc++.so.6", "libjpeg.so.62", "libnghttp2.so.14")
LOCK = Path("deploy/requirements/build.lock")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def system_packages() -> list[dict[str, Any]]:
    """Return the packages of the system that compile, or are compiled in or copied."""
    compiles = Path(run(*compiler(), "-print-prog-name=cc1plus").strip())
    programs = [Path(str(shutil.which(name))) for name in ("as", "ld", sys.executable)]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    files = [compiles, headers, *programs, *(library(name) for name in LIBRARIES)]
    found = [package_of(file.resolve()) for file in files]
    return [{"uri": url} for url in sorted({package.url for package in found if package})]


def python_packages() -> list[dict[str, Any]]:
    """Return the packages of the environment, whose digests the lock file has."""
    names = {(one.metadata["Name"].lower(), one.version) for one in metadata.distributions()}
    return [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in sorted(names)]


def statement(file: Path, commit: str) -> dict[str, Any]:
    """Return the statement about a file that was built from a commit."""
    lock = {"name": str(LOCK), "digest": {"sha256": sha256(LOCK)}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": sha256(file)}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "commit": commit,
                    "python": platform.python_version(),
                    "SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"],
                },
                "internalParameters": {"machine": platform.machine(), "libc": platform.libc_ver()},
                "resolvedDependencies": [
                    {"name": "ksrv", "digest": {"gitCommit": commit}},
                    lock,
                    *python_packages(),
                    *system_packages(),
                ],
            },
            "runDetails": {"builder": {"id": os.environ.get("RELEASE_BUILDER", NOBODY)}},
        },
    }


if __name__ == "__main__":
    subject = Path(sys.argv[1])
    text = json.dumps(statement(subject, sys.argv[2]), indent=1)
    subject.with_name(subject.name + ".provenance.json").write_text(text + "\n")

"""The lock files have every package that is needed, in the version of constraints.txt, with hashes."""

import re
import tomllib

import pytest

from tests.unit.deploy.packages import DEPLOY

ROOT = DEPLOY.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(name):
    """Return (version, number of hashes) of every package in a lock file."""
    text = (DEPLOY / "requirements" / f"{name}.lock").read_text()
    blocks = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}.*\n)+)", text, re.MULTILINE)  # fmt: skip
    assert len(blocks) == len(re.findall(r"^[A-Za-z0-9_.-]+==", text, re.MULTILINE))
    return {plain(found): (version, hashes.count("--hash")) for found, version, hashes in blocks}


def names(requirements):
    return {plain(re.match(r"[A-Za-z0-9_.-]+", one)[0]) for one in requirements}


def extra(*wanted):
    optional = PROJECT["project"]["optional-dependencies"]
    return {name for key in wanted for name in names(optional[key])}


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {
        plain(key): version for key, version in (one.split("==") for one in lines if "==" in one)
    }


@pytest.mark.parametrize("name", ["build", "runtime", "pull", "ci"])
def test_a_lock_has_the_versions_of_the_constraints(name):
    pinned = constraints()
    for package, (version, hashes) in lock(name).items():
        assert hashes > 0
        assert version == pinned.get(package, version), f"{package}: run make locks"


def test_every_requirement_of_ksrv_has_a_version_in_the_constraints():
    wanted = names(PROJECT["project"]["dependencies"]) | names(PROJECT["build-system"]["requires"])
    wanted |= extra(*PROJECT["project"]["optional-dependencies"])
    assert wanted - constraints().keys() == set()


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("build", names(PROJECT["build-system"]["requires"])),
        ("runtime", names(PROJECT["project"]["dependencies"]) | extra("onnx", "otel")),
        ("pull", names(PROJECT["project"]["dependencies"]) | extra("pull", "signature")),
        (
            "ci",
            names(PROJECT["project"]["dependencies"]) | extra("onnx", "test") - {"torch"},
        ),
    ],
)
def test_a_lock_has_what_pyproject_asks_for(name, needed):
    assert needed - lock(name).keys() == set(), "run make locks"


def test_the_licences_are_those_of_the_container():
    text = (DEPLOY / "requirements/licences.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    listed = {plain(row[1].strip()): row[2].strip() for row in rows}
    assert listed == {name: version for name, (version, _) in lock("runtime").items()}
    assert all(row[3].strip() not in ("", "UNKNOWN") for row in rows)

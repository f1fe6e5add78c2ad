"""Includes between folders of the native core run one way, as native/README.md says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MODULES = {
    "reactor": set(),
    "memory": set(),
    "tensor": {"memory"},
    "batch": {"tensor"},
    "json": {"memory", "tensor"},
    "protobuf": {"tensor"},
    "images": {"memory", "queue", "tensor"},
    "tls": set(),
    "http": set(),
    "queue": set(),
    "infer": {"memory", "tensor"},
    "server": {"reactor", "memory", "tensor", "batch", "http", "images", "queue", "tls", "infer"},
    "grpc": {"reactor", "memory", "http", "queue", "tls", "server"},
    "process": {"batch", "images", "memory", "queue", "server", "tensor"},
}

ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)
"""A row of the README's table: the folders, and what they may use besides `base`."""
INCLUDE = re.compile(r'^#include "(\w+)/', re.MULTILINE)
IMPORT = re.compile(r"\bksrv\._native\.(\w+)")
NAME = re.compile(r"`(\w+)`")
HEADER = re.compile(r"^from native\.(\w+)\.[\w.]+ cimport", re.MULTILINE)


def allowed_includes() -> dict[str, set[str]]:
    """Return which folders each folder may use, as the README's table says."""
    found = {"base": set[str]()}
    for folders, uses in ROW.findall((ROOT / "native" / "README.md").read_text()):
        base = set() if "not even `base`" in uses else {"base"}
        names = {} if uses.startswith("nothing") else NAME.findall(uses)
        found |= {folder: base.union(names) for folder in NAME.findall(folders)}
    return found


CORE = allowed_includes()


def used(folder: Path, *patterns: re.Pattern[str]) -> dict[str, Path]:
    """Return the folders that the files of one folder use, each with a file that does."""
    return {
        name: path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".hpp", ".cpp", ".pyx", ".pxd")
        for pattern in patterns
        for name in pattern.findall(path.read_text())
    }


@pytest.mark.parametrize("folder", sorted(CORE))
def test_core_folder_includes_only_lower_folders(folder):
    beyond = used(ROOT / "native" / folder, INCLUDE)
    assert {name: beyond[name] for name in beyond.keys() - CORE[folder] - {folder}} == {}


@pytest.mark.parametrize("folder", sorted(MODULES))
def test_compiled_modules_import_only_lower_modules_and_headers(folder):
    headers = CORE.get(folder, {"base"}) | MODULES[folder]
    for pattern, below in ((IMPORT, MODULES[folder]), (HEADER, headers)):
        beyond = used(ROOT / "ksrv" / "_native" / folder, pattern)
        assert {name: beyond[name] for name in beyond.keys() - below - {folder}} == {}


def test_every_folder_has_its_arrows():
    def folders(root: Path) -> set[str]:
        return {
            path.parent.name for pattern in ("*/*.hpp", "*/*.pyx") for path in root.glob(pattern)
        }

    assert folders(ROOT / "native") == set(CORE)
    assert folders(ROOT / "ksrv" / "_native") == set(MODULES)
    assert set(MODULES) - set(CORE) == {"batch"}  # compiled Python, without C++


def test_module_names_are_unique():
    """The one extension file has an initialiser for each module, called by the last part of its name."""
    names = [path.stem for path in (ROOT / "ksrv" / "_native").glob("*/*.pyx")]
    assert len(names) == len(set(names))

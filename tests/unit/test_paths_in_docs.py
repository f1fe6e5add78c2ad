"""All files and folders that the documents name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "native/README.md"]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
PATH = re.compile(r"`((?:ksrv|native|tests|tools|benchmarks|examples|protos|docs)/[\w./-]*)`")

MADE = {"benchmarks/results/"}
"""Folders that `make` creates."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_paths_exist(document):
    named = set(PATH.findall(document.read_text())) - MADE
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []

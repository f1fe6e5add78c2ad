"""The page of the dialect, followed from top to bottom in an empty folder."""

import pytest

from tests.support.documents import Reader, blocks_of
from tests.support.paths import ROOT


def test_reader_of_the_page_moves_a_model(tmp_path):
    for package in ("mlflow", "pandas", "sklearn", "skops"):
        pytest.importorskip(package)
    Reader(tmp_path).follow(blocks_of(ROOT / "docs/migration/mlflow.md"))

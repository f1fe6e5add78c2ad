"""The curl lines of pages that are not tutorials, against models of the names that the pages use."""

import os
import re
import shutil
import subprocess

import cv2
import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.documents import blocks_of_any
from tests.support.models import MEAN, write_model
from tests.support.paths import ROOT

PAGES = {
    "docs/protocol.md": 2,
    "docs/reference/index.md": 1,
    "docs/runbooks.md": 3,
    "docs/sequences.md": 1,
    "docs/streams.md": 2,
}
"""Pages, and how many commands of curl each has at least."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown")
    write_model(
        root / "models", "cats", MEAN,
        "inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]\n"
        "outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]\n",
    )  # fmt: skip
    shutil.copytree(ROOT / "examples/streaming/storyteller", root / "models/storyteller")
    shutil.copytree(ROOT / "examples/sequences/smoother", root / "models/smoother")
    for name in ("cat.jpg", "dog.png"):
        assert cv2.imwrite(str(root / name), np.full((20, 10, 3), 90, np.uint8))
    return root


@pytest.fixture(scope="module")
def shown_server(folder):
    with Server(folder / "models") as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_curl_is_answered(page, folder, shown_server):
    code = "\n".join(blocks_of_any(ROOT / page)).replace("\\\n", " ")
    lines = [line for line in code.splitlines() if re.match(r"\(?curl ", line)]
    assert len(lines) >= PAGES[page]
    for line in lines:
        here = re.sub(r"(?:127\.0\.0\.1|localhost):8080", shown_server.http, line)
        done = subprocess.run(
            ["bash", "-c", here.replace("curl ", "curl -sS --fail-with-body ", 1)], cwd=folder,
            env=os.environ | {"URL": shown_server.url}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout

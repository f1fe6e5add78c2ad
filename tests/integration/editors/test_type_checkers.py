"""Handlers as README, the pages and `ksrv init` show them, under mypy and pyright."""

import json
import os
import re
import subprocess
import sys

from tests.support.documents import blocks_of
from tests.support.paths import ROOT

_HANDLER = re.compile(r"^from ksrv import", re.MULTILINE)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

EVERY_FORM = """
from collections.abc import Iterator
from typing import Annotated, TypedDict

import numpy as np

from ksrv import BaseHandler, Batch, Bytes, Context, Float32, Image, Uint8, settings


class Answer(TypedDict):
    label: Bytes[3]
    score: Float32[3]


@settings(batching={"max_batch_size": 4})
class Named(BaseHandler):
    inputs = {"image": Image[224, 224, 3].prepared(scale=255, mean=[0.5]), "pixels": Uint8[8]}

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.least = float(context.parameters.get("least", 1))

    def inference(self, image: Image[224, 224, 3], pixels: Uint8[8]) -> Answer:
        logits = image.mean(axis=(1, 2)) * self.least + pixels[:, :3]
        return {"label": [["a", "b", "c"] for _ in logits], "score": np.asarray(logits)}


def listed(x: Float32[2], factor: Float32[1] | None = None) -> Float32[2]:
    return [[1.0, 2.0] for _ in x]


def exact(x: Annotated[np.ndarray, Float32[-1, "1:8"]]) -> Float32:
    return x.sum(axis=(1, 2))


def told(text: Bytes, batch: Batch) -> Iterator[Bytes]:
    for word in text:
        yield word.decode().upper() + str(batch.rows)
"""

TYPED_WRONG = """
from ksrv import BaseHandler, Float32


class Wrong(BaseHandler):
    def inference(self, x: Float32[3]) -> Float32[3]:
        return x * self.context.parametres["factor"]
"""


# The other packages that ksrv and the pages import are large, and their types are not checked here.
MYPY_INI = """
[mypy]
follow_imports = silent
ignore_missing_imports = true
warn_redundant_casts = true

[mypy-torch.*,onnx.*,sklearn.*,google.*,grpc.*,falcon.*,hypothesis.*,PIL.*]
follow_imports = skip
"""


def checked_by_mypy(files, folder):
    (folder / "mypy.ini").write_text(MYPY_INI)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *map(str, files)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def checked_by_pyright(files, folder, pyright):
    settings = json.loads((folder / "pyrightconfig.json").read_text())
    named = [str(file) for file in files]
    quiet = {"reportMissingImports": False, "reportMissingModuleSource": False}
    project = folder / "project.json"
    project.write_text(json.dumps(settings | quiet | {"include": named}))
    command = [*pyright("cli"), "--outputjson", "--project", str(project)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] >= len(files), done.stdout
    found = [one for one in answer["generalDiagnostics"] if one["severity"] == "error"]
    return [f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in found]


def shown_handlers(folder):
    """Write down each block of the pages that is a file with a handler."""
    files = []
    for page in PAGES:
        for number, block in enumerate(blocks_of(page)):
            if block.language == "python" and _HANDLER.search(block.text):
                name = f"{page.stem.replace('-', '_').lower()}_{number}"
                files.append(folder / f"{name}.py")
                files[-1].write_text(block.text)
    return files


def templates(folder):
    files = []
    for path in sorted((ROOT / "ksrv/cli/templates").glob("*/*.py.in")):
        name = f"{path.parent.name}_{path.name.removesuffix('.py.in')}".replace("-", "_")
        files.append(folder / f"{name.replace('@NAME@', 'named')}.py")
        files[-1].write_text(path.read_text().replace("@NAME@", "named").replace("@TEST@", "t"))
    return files


def written(folder):
    """Write down every handler that a newcomer may read, and one with each form of a hint."""
    (folder / "every_form.py").write_text(EVERY_FORM)
    return [*shown_handlers(folder), *templates(folder), folder / "every_form.py"]


def test_mypy_is_content_and_finds_what_is_misspelt(opened):
    (opened / "wrong.py").write_text(TYPED_WRONG)
    found = checked_by_mypy([*written(opened), opened / "wrong.py"], opened)
    assert ["parametres" in line for line in found] == [True], found


def test_pyright_is_content_and_finds_what_is_misspelt(opened, pyright):
    (opened / "wrong.py").write_text(TYPED_WRONG)
    found = checked_by_pyright([*written(opened), opened / "wrong.py"], opened, pyright)
    assert ["parametres" in line for line in found] == [True], found


def test_the_first_example_is_among_them(opened):
    assert any("class Bright(BaseHandler)" in file.read_text() for file in shown_handlers(opened))

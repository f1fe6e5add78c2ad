"""`serve` and `Server` in a real kernel, as Jupyter runs one, and the page about notebooks."""

import os
import re

import pytest

from tests.support.documents import blocks_of
from tests.support.paths import ROOT

PAGE = ROOT / "docs/notebooks.md"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs cells in one kernel and returns what each printed and showed."""
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: make test-editors"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: make test-editors")
    import nbformat

    def notebook(*cells, expects_error=False):
        made = [nbformat.v4.new_code_cell(cell) for cell in cells]
        book = nbformat.v4.new_notebook(cells=made)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        client = nbclient.NotebookClient(
            book,
            timeout=200,
            allow_errors=expects_error,
            resources={"metadata": {"path": str(tmp_path)}},
        )
        client.execute(env=environment)
        return ["".join(_text(output) for output in cell["outputs"]) for cell in book.cells]

    return notebook


def _text(output):
    if output["output_type"] == "error":
        return re.sub(r"\x1b\[[0-9;]*m", "", f"{output['ename']}: {output['evalue']}")
    data = output.get("data", {})
    return output.get("text", "") or data.get("text/html", "") + data.get("text/plain", "")


MODEL = """
import numpy as np
from typing import TypedDict
from ksrv import *
from ksrv import serve, Float32 as Number

FACTOR = 3
class Answer(TypedDict):
    y: Number[2]

def times(x):
    return np.multiply(x, FACTOR)
"""

CELL = """
class Scale(BaseHandler):
    def inference(self, x: Number[2]) -> Answer:
        return {"y": times(x)}

server = serve(Scale)
server
"""


def test_a_class_of_a_cell_is_served_beside_the_kernel(run, tmp_path):
    cells = run(
        MODEL,
        CELL,
        "with server.client() as client: print(client.infer('scale', [1, 2])['y'].tolist())",
        CELL.replace("times(x)", "times(x) + 1"),
        "with server.client() as client: print(client.infer('scale', [1, 2])['y'].tolist())",
        "import urllib.request; print(urllib.request.urlopen(server.url).status); old = server.url",
        "server.stop(); server.stop(); server",
        "print('ready: True' in server.log)",
    )
    assert '<a href="http://127.0.0.1:' in cells[1]
    assert cells[2] == "[[3.0, 6.0]]\n"
    assert cells[4] == "[[4.0, 7.0]]\n"
    assert cells[5] == "200\n"
    assert "stopped" in cells[6]
    assert cells[7] == "True\n"
    assert list(tmp_path.glob("_ksrv_*")) == []


def test_servers_of_tests_take_classes_of_cells(run):
    cells = run(
        MODEL + CELL.partition("server =")[0],
        "from ksrv.testing import Server\nfrom ksrv.client import Client",
        "with Server(Scale) as server, Client(server.url) as client:\n"
        "    print(client.infer('scale', [1, 2])['y'].tolist())",
    )
    assert cells[2] == "[[3.0, 6.0]]\n"


def test_values_that_workers_cannot_have_are_named(run):
    cells = run(
        MODEL + "network = object()",
        CELL.replace("times(x)", "network(x)"),
        "class Broken(BaseHandler):\n    def initialize(self, context): raise OSError('no disk')",
        "serve(Broken)",
        "serve(lambda x: x)",
        "print('the kernel lives')",
        expects_error=True,
    )
    assert "CannotServe: Scale uses 'network', which the notebook computed (object)" in cells[1]
    assert "initialize, or save it to a file" in cells[1]
    assert "ServerFailed" in cells[3] and "no disk" in cells[3]
    assert "CannotServe: <lambda> is not defined in a cell under that name" in cells[4]
    assert cells[5] == "the kernel lives\n"


def test_the_page_works_from_top_to_bottom(run):
    blocks = blocks_of(PAGE)
    code = [block.text for block in blocks if block.language == "python" and not block.title]
    printed = "".join(run(*code))
    shown = [block.text.rstrip("\n") for block in blocks if block.language == "text"]
    assert shown
    for text in shown:
        assert text in printed

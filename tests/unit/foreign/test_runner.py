"""The runner of make test-foreign, on a checkout that the test creates."""

from pathlib import Path

import pytest

from tests.foreign.cases import Case, Outcome, Places, Repository, Serving
from tests.foreign.report import models as models_table
from tests.foreign.running import run

HANDLER = """
from ksrv import BaseHandler, Float32

class Model(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        return x + 1
"""

CLIENT = """
import json, sys, urllib.request
body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
url = f"http://{sys.argv[1]}/v2/models/plus/infer"
print(urllib.request.urlopen(url, json.dumps(body).encode()).read().decode())
"""

SUITE = """
import pathlib, unittest
class Things(unittest.TestCase):
    def test_good(self):
        pathlib.Path("left-behind").touch()
    def test_bad(self):
        self.assertEqual("ksrv", "triton")
    def test_left_out(self):
        raise SystemError
    @unittest.skip("not here")
    def test_skipped(self):
        pass
"""


def models(places: Places, folder: Path) -> list[Path]:
    (folder / "plus").mkdir()
    (folder / "plus/handler.py").write_text(HANDLER)
    return [folder]


def missing(places: Places, folder: Path) -> list[Path]:
    return [folder / "nothing"]


SERVING = Serving("models", models)
PYTHON = "{python}"
CASES = (
    Case("client.py", (PYTHON, "{checkout}/client.py", "{http}"), SERVING, prints=r"\[2\.0,3\.0\]"),
    Case("client.py -v", (PYTHON, "{checkout}/client.py", "{http}"), SERVING, prints="no such"),
    Case(
        "names.py",
        (PYTHON, "names.py"),
        copies=("names.py",),
        folder=".",
        edits=(("names.py", "triton", "ksrv"),),
        changed="its name is ours",
    ),
    Case("ends.py", (PYTHON, "{checkout}/ends.py"), fails="its author reports it"),
    Case("waits.py", (PYTHON, "{checkout}/waits.py"), timeout=0.2, fails="it waits for ever"),
    Case("broken.py", (PYTHON, "{checkout}/broken.py"), Serving("missing", missing)),
    Case(
        "suite/tests.py",
        (PYTHON, "{root}/unittest_program.py", "tests.py", "--except", "test_left_out"),
        copies=("suite",),
        folder="suite",
        tests=True,
        failing={"Things.test_b*": "our name is another"},
    ),
)
REPOSITORY = Repository("somebody/something", "something", CASES, {"`gpu.py`": "it needs a GPU"})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkouts") / "something"
    (folder / "suite").mkdir(parents=True)
    (folder / "client.py").write_text(CLIENT)
    (folder / "names.py").write_text('assert "triton" == "ks" + "rv"')
    (folder / "ends.py").write_text('raise SystemExit("no | way")')
    (folder / "waits.py").write_text("import time; time.sleep(60)")
    (folder / "suite/tests.py").write_text(SUITE)
    folder.with_name("something.commit").write_text("0123456789abcdef\n")
    return folder


@pytest.fixture(scope="module")
def outcomes(checkout, tmp_path_factory):
    places = Places(checkout, tmp_path_factory.mktemp("work"), checkout.parent)
    return list(run(REPOSITORY, places))


def test_each_case_has_its_outcome(outcomes):
    assert [(one.name, one.works, one.surprises) for one in outcomes] == [
        ("client.py", True, False),
        ("client.py -v", False, True),
        ("names.py", True, False),
        ("ends.py", False, False),
        ("waits.py", False, False),
        ("broken.py", False, True),
        ("suite/tests.py Things.test_bad", False, False),
        ("suite/tests.py Things.test_good", True, False),
    ]
    found = {one.name: one.found for one in outcomes}
    assert "[2.0,3.0]" in found["client.py -v"] and "(status 0)" in found["client.py -v"]
    assert "no | way" in found["ends.py"]
    assert "nothing" in found["broken.py"]
    assert found["suite/tests.py Things.test_bad"].startswith("AssertionError: 'ksrv' != 'triton'")


def test_nothing_is_written_into_the_checkout(checkout, outcomes):
    left = {str(path.relative_to(checkout)) for path in checkout.rglob("*")}
    assert left == {"client.py", "names.py", "ends.py", "waits.py", "suite", "suite/tests.py"}


def test_working_case_with_a_failure_reason_is_unexpected():
    assert Outcome("a", True, known="it fails").surprises
    assert not Outcome("a", True).surprises


def test_a_model_runs_where_a_case_of_it_works_and_none_fails_without_a_reason():
    outcomes = [
        Outcome("one", works=True, models=("qa/good", "qa/named", "qa/flawed")),
        Outcome("two", works=False, known="asks for more", models=("qa/named", "qa/never")),
        Outcome("three", works=False, found="it broke", models=("qa/flawed",)),
    ]
    table = models_table(outcomes, {"qa/gpu": "needs a GPU"})
    head, _, rest = table.partition("\n")
    assert head == "2 of 5 run: `good`, `named`."
    assert rest.strip().splitlines()[2:] == [
        "| `flawed` | it broke |",
        "| `gpu` | needs a GPU |",
        "| `never` | asks for more |",
    ]

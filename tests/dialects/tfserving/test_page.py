"""docs/migration/tfserving.md: a reader moves a client with the page alone, and its errors are the server's."""

import json
import re
import shlex
import subprocess

import pytest
import requests
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/migration/tfserving.md").read_text()
BLOCKS = {
    kind: re.findall(rf"^```{kind}[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for kind in ("text", "sh", "json", "python")
}
HALF = "def inference(x):\n    return {'y': x / 2}\n"
YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    for version in ("1", "2"):
        write_model(root / "models/half", version, HALF, YAML)
    (root / "models.config").write_text(BLOCKS["text"][0])
    command = shlex.split(BLOCKS["sh"][0])
    assert command[:3] == ["ksrv", "serve", "models.config"]
    with Server(root / "models.config") as server:
        yield server


def test_the_commands_of_the_page_answer_what_it_shows(served):
    commands = BLOCKS["sh"][1].splitlines()
    answers = BLOCKS["json"][0].splitlines()
    for command, expected in zip(commands, answers, strict=True):
        arguments = shlex.split(command.replace("http://127.0.0.1:8501", served.url))
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stdout == expected


def test_the_client_of_the_page_reads_its_answer(served, capsys):
    pytest.importorskip("tensorflow_serving")
    exec(BLOCKS["python"][0].replace("127.0.0.1:8500", served.grpc), {})
    assert capsys.readouterr().out == "[[0.5 1. ]]\n"


def test_a_model_without_a_file_is_served_under_its_name(tmp_path):
    write_model(tmp_path / "models/half", "1", HALF, YAML)
    with Server(tmp_path / "models/half", model_name="other") as server:
        body = {"instances": [[1, 2]]}
        url = f"{server.url}/v1/models/other/versions/1:predict"
        assert requests.post(url, json=body, timeout=60).json() == {"predictions": [[0.5, 1]]}


def test_a_file_with_another_suffix_is_refused_by_the_suffixes(tmp_path):
    path = tmp_path / "models.conf"
    path.write_text(BLOCKS["text"][0])
    found = CliRunner().invoke(main, ["serve", str(path)])
    assert found.exit_code != 0
    assert "a model's file ends with" in found.output


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("half/labels/canary:predict", {"instances": [[1, 2]]}),
        ("half:predict", {"instances": [[1, 2]], "inputs": [[1, 2]]}),
        ("half:classify", {"instances": [[1, 2]]}),
        ("half:predict", {"inputs": {"z": [[1, 2]]}}),
    ],
)
def test_errors_of_requests_stand_on_the_page(served, path, body):
    answer = requests.post(f"{served.url}/v1/models/{path}", json=body, timeout=60)
    assert 400 <= answer.status_code < 500
    error = answer.json()["error"]
    first_hour = PAGE.partition("## What goes wrong in the first hour")[2]
    shown = re.findall(r"^\| `([^`]+)` \|", first_hour, re.MULTILINE)
    assert any(text.split(";")[0].split(" …")[0] in error for text in shown), json.dumps(error)

"""`ksrv client`: the code that it prints is run as printed."""

import os
import shutil
import subprocess
import sys

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.client.command.code import LANGUAGES
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double, write_mean, write_model, write_text
from tests.support.paths import ROOT

SUM = """
def inference(image, weight, wide):
    return {"sum": image.sum(axis=(1, 2, 3)) + weight.sum(axis=1) + wide.sum(axis=(1, 2))}
"""

PEOPLE = """
def inference(age, city):
    return {"old": age > 40, "letters": [len(one) for one in city]}
"""

PROGRAMS = {"curl": ["bash", "-e"], "python": [sys.executable], "javascript": ["node"]}
SUFFIXES = {"curl": "sh", "python": "py", "javascript": "mjs"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_double(root)
    write_mean(root)
    write_text(root)
    write_model(
        root, "sum", SUM,
        "inputs:\n  - {name: image, datatype: FP32, shape: [-1, 8, 8, 3]}\n"
        "  - {name: weight, datatype: FP32, shape: [-1, 4]}\n"
        "  - {name: wide, datatype: FP32, shape: [-1, 40, -1]}\n"
        "outputs: [{name: sum, datatype: FP32, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(
        root, "people", PEOPLE,
        "inputs: [{name: age, datatype: FP32, shape: [-1]}, {name: city, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: old, datatype: BOOL, shape: [-1]}, {name: letters, datatype: INT64, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(root, "open", SUM, "warmup: false\n")
    return root


@pytest.fixture(scope="module")
def server(models):
    with Server(models, grpc="off") as running:
        yield running


def printed(*arguments):
    done = CliRunner().invoke(main, ["client", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def run(language, code, folder, **variables):
    if shutil.which(PROGRAMS[language][0]) is None:
        pytest.skip(f"{PROGRAMS[language][0]} is not installed")
    file = folder / f"program.{SUFFIXES[language]}"
    file.write_text(code)
    done = subprocess.run(
        [*PROGRAMS[language], file], cwd=folder, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    assert cv2.imwrite(str(tmp_path / "image.jpg"), np.full((8, 8, 3), 7, np.uint8))
    return tmp_path


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("model", "output"),
    [("double", "y"), ("mean", "mean"), ("text", "y"), ("sum", "sum"), ("people", "letters")],
)
def test_the_code_runs(server, folder, language, model, output):
    code = printed(model, "--url", server.url, "--language", language)
    shown = run(language, code, folder)
    assert output in shown and "error" not in shown
    if model == "mean":
        assert "7" in shown


def test_columns_are_shown_as_a_table(server, folder):
    code = printed("people", "--url", server.url, "--language", "curl")
    assert """/generate -d '{"age": 0, "city": "text"}'""" in code
    assert '"old":false,"letters":4' in run("curl", code, folder)
    code = printed("people", "--url", server.url, "--language", "python")
    assert "table = {\n    'age': [0],\n    'city': ['text'],\n}\n" in code


@pytest.mark.parametrize("language", LANGUAGES)
def test_token_and_authority_are_in_the_code(models, folder, language):
    key, cert = self_signed(folder / "tls")
    tokens = folder / "tokens.txt"
    tokens.write_text("# one in a line\n\nsecret\n")
    with Server(models, grpc="off", tls_cert=str(cert), tls_key=str(key), token_file=str(tokens),
                ) as server:  # fmt: skip
        given = ["mean", "--url", server.url, "--ca", cert, "--language", language]
        code = printed(*given, "--token-file", tokens)
        assert "secret" not in code
        certificates = {"NODE_EXTRA_CA_CERTS": str(cert)}
        assert "mean" in run(language, code, folder, **certificates)
        done = CliRunner().invoke(main, ["client", *map(str, given)], env={"KSRV_TOKEN": "secret"})
        assert "secret" not in done.output and "KSRV_TOKEN" in done.output
        shown = run(language, done.output, folder, KSRV_TOKEN="secret", **certificates)
        assert "mean" in shown


def test_all_languages_are_printed_by_default(server):
    text = printed("double", "--url", server.url)
    assert [line for line in text.splitlines() if line.startswith("---")] == [
        f"--- {language} ---" for language in LANGUAGES
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nope"], 1, "404"),
        (["open"], 1, "declares no inputs"),
        (["double", "--url", "grpc://127.0.0.1:1"], 2, "REST"),
        (["double", "--url", "ftp://x"], 2, "--url"),
        (["double", "--url", "http://127.0.0.1:1"], 1, "no answer"),
    ],
)
def test_mistakes_are_one_sentence(server, arguments, status, text):
    url = [] if "--url" in arguments else ["--url", server.url]
    done = CliRunner().invoke(main, ["client", *arguments, *url])
    assert done.exit_code == status, done.output
    assert text in done.output

"""The examples of handlers in one file: served as scripts, and tested by the tests beside them."""

import os
import subprocess
import sys

import cv2
import numpy as np

from ksrv.client import Client
from tests.support.paths import ROOT
from tests.support.servers.script_server import ScriptServer

FOLDER = ROOT / "examples" / "one_file"


def lines_of_code(name):
    text = (FOLDER / name).read_text().splitlines()
    return [line for line in text if line.strip()]


def test_six_lines_are_served_and_ten_test_them():
    assert len(lines_of_code("bright.py")) == 6
    assert len((FOLDER / "test_bright.py").read_text().splitlines()) == 10
    _, red = cv2.imencode(".png", np.full((60, 80, 3), (0, 0, 255), np.uint8))
    with ScriptServer(FOLDER / "bright.py") as server, Client(server.url) as client:
        assert client.infer("bright", red.tobytes())["output"].tolist() == [[255, 0, 0]]


def test_two_handlers_of_one_file():
    with ScriptServer(FOLDER / "moods.py", workers=2) as server, Client(server.url) as client:
        answer = client.infer("moods", ["a happy day", "sad rain"])
        assert answer["mood"].tolist() == [b"good", b"bad"]
        assert client.infer("lengths", "four")["output"].tolist() == [4]


def test_the_tests_of_the_examples_pass():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        cwd=FOLDER,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout

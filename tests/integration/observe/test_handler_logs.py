"""A handler's log records are in the server's log, like the server's records."""

import json
import re

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

HANDLER = """
import logging, threading
import beside
from ksrv import BaseHandler

log = logging.getLogger(__name__)

class Logs(BaseHandler):
    def initialize(self, context):
        log.debug("a detail")
        log.info("loading %s", "weights")
        log.getChild("part").info("a child speaks")
        logging.getLogger("somebody").warning("by another name")
        beside.speak()
        thread = threading.Thread(target=log.warning, args=("from a thread",))
        thread.start()
        thread.join()

    def inference(self, x):
        return {"y": x}
"""

BESIDE = """
import logging

def speak():
    logging.getLogger(__name__).error("from the file beside")
"""

SAID = {
    "a detail": "debug",
    "loading weights": "info",
    "a child speaks": "info",
    "from a thread": "warning",
    "from the file beside": "error",
}


def write(root, executor):
    root.mkdir(exist_ok=True)
    model = write_model(root, "cats", "", f"{VECTOR}executor: {executor}\nwarmup: false\n")
    (model / "handler.py").unlink()
    (model / "3").mkdir()
    (model / "3" / "handler.py").write_text(HANDLER)
    (model / "3" / "beside.py").write_text(BESIDE)


def records(server):
    """The lines of a JSON log; all that the server's processes write to stderr is one."""
    lines = [line for line in server.log.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


LOGGERS = {"inline": r"ksrv_models\.cats\w*\.(handler|beside)", "process": "(handler|beside)"}
"""The names of a file's logger: in a separate process, a model's files have their bare names."""


@pytest.mark.parametrize("executor", LOGGERS)
def test_json_records_name_level_logger_model_and_version(tmp_path, executor):
    write(tmp_path / "models", executor)
    with Server(tmp_path / "models", log_format="json", log_level="debug") as server:
        wait_until(lambda: "from a thread" in server.log)
        found = {
            text: record
            for record in records(server)
            for text in [*SAID, "by another name"]
            if record["message"].endswith(text)
        }
        for text, level in SAID.items():
            record = found[text]
            assert record["level"] == level
            assert (record["model"], record["version"], record["instance"]) == ("cats", "3", 0)
            assert re.match(LOGGERS[executor], record["logger"])
        assert found["a child speaks"]["logger"].endswith("handler.part")
        assert found["by another name"]["level"] == "warning"
        assert not re.search(r"^(by another name|from a)", server.log, re.MULTILINE)


@pytest.mark.parametrize("executor", LOGGERS)
def test_the_text_log_shows_information_and_no_detail_unless_asked(tmp_path, executor):
    write(tmp_path / "models", executor)
    with Server(tmp_path / "models") as server:
        wait_until(lambda: "from a thread" in server.log)
        assert "a detail" not in server.log
        for text in ("loading weights", "a child speaks", "from the file beside"):
            (line,) = [line for line in server.log.splitlines() if line.endswith(text)]
            assert re.match(rf"[-0-9]+ [:,0-9]+ \[\d+\] [A-Z]+ {LOGGERS[executor]}", line)
            assert re.search(rf": \[cats/3#0( pid \d+)?\] {text}$", line)
    with Server(tmp_path / "models", log_level="error") as server:
        assert "loading weights" not in server.log and "from a thread" not in server.log
        assert "from the file beside" in server.log


def test_the_logger_of_an_installed_module_names_the_model_that_it_serves(tmp_path):
    (tmp_path / "cat_handlers.py").write_text(HANDLER.replace("import beside\n", "").replace(
        "beside.speak()", "pass"))  # fmt: skip
    folder = tmp_path / "models" / "cats"
    folder.mkdir(parents=True)
    (folder / "model.yaml").write_text(f"handler: cat_handlers:Logs\n{VECTOR}executor: inline\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    with Server(tmp_path / "models", log_format="json", environment=environment) as server:
        said = [one for one in records(server) if one["message"] == "loading weights"]
        assert [(one["logger"], one["model"]) for one in said] == [("cat_handlers", "cats")]


MISTAKES = """
import logging
from ksrv import BaseHandler

class Text(str):
    pass

class Level(int):
    pass

class Shy:
    def __str__(self):
        raise ValueError("nothing to show")

class Logs(BaseHandler):
    def inference(self, x):
        log = logging.getLogger(Text("named"))
        log.warning("%d items", "three")
        log.warning("one", "too many")
        log.warning(Shy())
        log.log(Level(30), "of classes of my own", extra={"request_ids": [Text("a")]})
        return {"y": x}
"""


@pytest.mark.parametrize("executor", LOGGERS)
def test_a_log_call_with_a_mistake_fails_no_request(tmp_path, executor):
    write_model(tmp_path, "cats", MISTAKES, f"{VECTOR}executor: {executor}\nwarmup: false\n")
    with Server(tmp_path) as server:
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}
        url = f"{server.url}/v2/models/cats/infer"
        assert requests.post(url, json={"inputs": [entry]}, timeout=60).status_code == 200
        wait_until(lambda: "of classes of my own" in server.log)
        wait_until(lambda: server.log.count("--- Logging error ---") == 3)
        assert "'%d items'" in server.log

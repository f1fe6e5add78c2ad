"""Models with another interpreter: its packages, the packages that the server lends it, and its faults."""

import json
import sys
import tarfile
import venv
from pathlib import Path

import numpy as np
import pytest
import requests

import ksrv.client
from ksrv.dialects.torchserve.archive.importing import examine
from ksrv.engine.processes import interpreters
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.errors import HandlerFailed
from ksrv.testing import Server
from tests.support.engine.process_models import batch_of, running, source
from tests.support.models import write_model
from tests.support.paths import ROOT
from tests.support.torchserve.archives import archive

pytestmark = pytest.mark.long

PATIENCE_S = 180.0
HANDLER = """
import importlib.util, json, sys
import numpy as np
import pinned
import ksrv

class Told(ksrv.BaseHandler):
    def inference(self, x):
        found = [name for name in ("falcon", "click", "pytest") if importlib.util.find_spec(name)]
        told = {"version": pinned.VERSION, "prefix": sys.prefix, "found": found, "sum": float(x.sum())}
        return {"told": np.array([json.dumps(told).encode()] * len(x), object)}
"""
SETTINGS = """
executor: process
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: told, datatype: BYTES, shape: [-1]}]
warmup: false
"""


DOCUMENTED = (ROOT / "docs/processes.md").read_text().partition("```yaml\n")[2].partition("```")[0]
"""The settings that the page shows."""


def environment(folder: Path, version: str) -> Path:
    """Make an environment with `pinned` and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pinned.py").write_text(f"VERSION = {version!r}\n")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/ksrv/environments"


def told(server, model):
    with ksrv.client.Client(server.url) as client:
        (answer,) = client.infer(model, {"x": np.ones((1, 2), "f4")})["told"]
    return json.loads(answer)


def test_interpreter_sees_its_packages_and_ksrvs_requirements(tmp_path):
    own = environment(tmp_path / "own", "7.0")
    shown = DOCUMENTED.replace("/opt/environments/detector", str(own))
    folder = SETTINGS.replace("executor: process\n", shown)
    write_model(tmp_path / "models", "folder", HANDLER, folder)
    write_model(tmp_path / "models", "file", HANDLER, SETTINGS + f"python: {own}/bin/python\n")
    with Server(tmp_path / "models") as server:
        for model in ("folder", "file"):
            expected = {"version": "7.0", "prefix": str(own), "found": [], "sum": 2.0}
            assert told(server, model) == expected


def test_a_process_is_replaced_in_its_own_interpreter(tmp_path):
    handler = """
    import pinned
    class H(BaseHandler):
        def handle(self, batch, context):
            if batch["x0"][0, 0]: os._exit(1)
            return [sys.prefix]
    """
    own = environment(tmp_path / "own", "7.0")
    ask, end = (batch_of(np.full((1, 1), value, "f4")) for value in (0, 1))
    with running(tmp_path, handler, config={"python": str(own)}) as executor:
        for _ in range(2):
            executor.start()
            assert executor.run(ask, None).tensors[0].data[0] == str(own).encode()
            with pytest.raises(HandlerFailed):
                executor.run(end, None)


def test_a_packed_environment_is_unpacked_once(tmp_path, cache):
    own = environment(tmp_path / "own", "3.1")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as packed:
        for part in own.iterdir():
            packed.add(part, part.name)
    handler = "import pinned\nclass H(BaseHandler):\n    def handle(self, batch, context): return [pinned.VERSION]\n"
    for _ in range(2):
        with running(tmp_path, handler, config={"python": "packed.tar.gz"}) as executor:
            answer = executor.run(batch_of(np.zeros((1, 1), "f4")), None)
            assert answer.tensors[0].data == [b"3.1"]
    assert len(list(cache.glob("*.whole"))) == 1


def test_archive_runs_in_the_environment_of_its_model_yaml(tmp_path):
    environment(tmp_path / "own", "5.0")
    handler = (
        "import pinned\ndef handle(data, context): return [pinned.VERSION] * len(data or [])\n"
    )
    (tmp_path / "told.py").write_text(handler)
    (tmp_path / "store").mkdir()
    made = archive(tmp_path / "store", "told", str(tmp_path / "told.py"), requirements="pinned\n")
    imported = examine(made).write(tmp_path / "models")
    with (imported / "model.yaml").open("a") as settings:
        settings.write(f"python: {tmp_path / 'own'}\n")
    with Server(tmp_path / "models", torchserve_api=True) as server:
        found = requests.post(f"{server.url}/predictions/told", data=b"x", timeout=PATIENCE_S)
        assert found.text == "5.0"


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


WRONG = {
    "missing": r"the interpreter .*missing of `python` does not exist; correct the path",
    "empty": r"the interpreter .*empty/bin/python of `python` does not exist",
    "text": r"the interpreter .*text cannot be started: Permission denied",
    "fails": r"fails is not a Python interpreter .* exit status 3 and said 'oh no'",
    "garbage": r"garbage is not a Python interpreter .* exit status 0 and said 'hello'",
    "other": r'other is not a Python interpreter .* exit status 0 and said \'{"python": 1}\'',
    "broken.tar.gz": r"the environment of .*broken.tar.gz cannot be unpacked: tar ended with exit status",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_interpreter_that_cannot_be_used_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("text")
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    script(tmp_path / "fails", "#!/bin/sh\necho oh no >&2\nexit 3\n")
    script(tmp_path / "garbage", "#!/bin/sh\necho hello\n")
    script(tmp_path / "other", "#!/bin/sh\necho '{\"python\": 1}'\n")
    executor = ProcessExecutor(source(tmp_path, "", python=name))
    with pytest.raises(HandlerFailed, match=WRONG[name]):
        executor.start()
    assert executor.pid == 0


def test_an_interpreter_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreters, "PROBE_TIMEOUT_S", 0.2)
    script(tmp_path / "hangs", "#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(HandlerFailed, match=r"hangs did not answer within 0\.2 s"):
        interpreters.interpreter_for("hangs", tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "packed.tar.gz").touch()
    with pytest.raises(HandlerFailed, match=r"no interpreter can be .*set XDG_CACHE_HOME"):
        interpreters.interpreter_for("packed.tar.gz", tmp_path)


def test_missing_package_is_reported_with_the_interpreter(tmp_path):
    own = environment(tmp_path / "own", "1.0")
    executor = ProcessExecutor(source(tmp_path, "import falcon", python=str(own)))
    with pytest.raises(HandlerFailed, match=rf"No module named 'falcon'.*interpreter {own}/bin"):
        executor.start()


def test_a_process_of_another_protocol_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ksrv.engine.processes.messages.PROTOCOL", 99)
    executor = ProcessExecutor(source(tmp_path, ""))
    with pytest.raises(
        HandlerFailed, match=r"speaks version \d+ .* the server version 99; install"
    ):
        executor.start()


@pytest.mark.differs_in_processes("the model is in a process")
def test_an_interpreter_needs_a_process(tmp_path):
    settings = SETTINGS.replace("executor: process", "python: /usr/bin/python3")
    write_model(tmp_path, "m", HANDLER, settings)
    with pytest.raises(Exception, match=r"add executor: process"), Server(tmp_path):
        pass


def test_interpreter_is_compared_while_another_thread_reads_pythons_configuration(
    tmp_path, monkeypatch
):
    """Python 3.11 fills the variables of sysconfig without a lock: other threads find some of them missing."""
    monkeypatch.setattr("sysconfig._CONFIG_VARS", {})
    found = interpreters.interpreter_for(sys.executable, tmp_path)
    assert found.program[1] == interpreters.bootstrap.__file__


def test_too_old_interpreter_is_refused(tmp_path, monkeypatch):
    asked = {"python": [3, 9, 1], "abi": ".cpython-39-x86_64-linux-gnu.so", "ksrv": ""}
    monkeypatch.setattr(interpreters, "_ask", lambda path: asked)
    text = rf"{sys.executable} is Python 3\.9\.1, .*; ksrv needs Python 3\.11 or later"
    with pytest.raises(HandlerFailed, match=text):
        interpreters.interpreter_for(sys.executable, tmp_path)


@pytest.mark.parametrize(
    ("release", "accepted"), [("", False), ("0.0.1", False), (ksrv.__version__, True)]
)
def test_other_python_needs_the_servers_release(tmp_path, monkeypatch, release, accepted):
    asked = {"python": [3, 99, 1], "abi": ".cpython-399-x86_64-linux-gnu.so", "ksrv": release}
    monkeypatch.setattr(interpreters, "_ask", lambda path: asked)
    if accepted:
        found = interpreters.interpreter_for(sys.executable, tmp_path)
        assert found.program == [sys.executable, "-P", "-m", interpreters.PROGRAM]
        return
    text = rf"is Python 3\.99\.1, and the server's is .*{sys.executable} -m pip install ksrv-"
    with pytest.raises(HandlerFailed, match=text):
        interpreters.interpreter_for(sys.executable, tmp_path)

"""Models with another interpreter: its packages, the packages that the server lends it, and its faults."""

import fcntl
import json
import subprocess
import sys
import tarfile
import time
import venv
from contextlib import suppress
from pathlib import Path
from shutil import copytree, which

import numpy as np
import pytest
import requests

import ksrv.client
from ksrv.dialects.torchserve.archive.importing import examine
from ksrv.engine.processes import interpreters
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.errors import HandlerFailed
from ksrv.installation import SHIPPED, SOURCES
from ksrv.testing import Server
from tests.support.engine.process_models import batch_of, running, source
from tests.support.models import write_model
from tests.support.paths import ROOT
from tests.support.torchserve.archives import archive
from tests.support.wait_until import wait_until

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


DOCUMENTED = (ROOT / "docs/interpreters.md").read_text().split("```")[3].partition("\n")[2]
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
    "fails": r"fails is no Python interpreter .* exit status 3 and said 'oh no'",
    "garbage": r"garbage is no Python interpreter .* exit status 0 and said 'hello'",
    "other": r'other is no Python interpreter .* exit status 0 and said \'{"python": 1}\'',
    "broken.tar.gz": r"the environment of .*broken.tar.gz cannot be built: tar ended with exit status",
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


OTHER = """
import sys, json
import numpy as np
import ksrv

class Told(ksrv.BaseHandler):
    def inference(self, x):
        told = {"python": sys.version_info[:2], "prefix": sys.prefix, "sum": float(x.sum())}
        return {"told": np.array([json.dumps(told).encode()] * len(x), object)}
"""


def other_version() -> str | None:
    """An interpreter of another version of Python that ksrv runs on."""
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    installed = sorted(Path.home().glob(".pyenv/versions/3.1[1-9].*/bin/python"), reverse=True)
    named = [which(f"python3.{minor}") for minor in range(11, 16)]
    for path in [*map(str, installed), *filter(None, named)]:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() != this:
            return path
    return None


@pytest.fixture
def another() -> str:
    path = other_version()
    if path is None:
        pytest.skip(
            "no interpreter of another version of Python that ksrv runs on is installed here"
        )
    return path


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_interpreter_of_another_version_serves_without_ksrv_in_it(tmp_path, another):
    """ksrv is built for it once, into the user's cache: this takes minutes of a core, and an index."""
    write_model(tmp_path, "other", OTHER, f"python: {another}\n{SETTINGS}")
    write_model(tmp_path, "own", OTHER, SETTINGS)
    with Server(tmp_path, start_timeout=3000) as server, ksrv.client.Client(server.url) as client:
        x = np.array([[1, 2], [3, 4]], np.float32)
        told = {}
        for model in ("other", "own"):
            rows = client.infer(model, {"x": x})["told"]
            told[model] = json.loads(rows[0])
            assert len(rows) == 2 and told[model]["sum"] == 10
        assert told["own"]["python"] == list(sys.version_info[:2]) != told["other"]["python"]
        assert told["other"]["prefix"] != told["own"]["prefix"]
    began = time.monotonic()
    interpreters.interpreter_for(another, tmp_path)  # that what was built is found again
    assert time.monotonic() - began < interpreters.PROBE_TIMEOUT_S


def test_ksrv_is_built_from_the_servers_sources(tmp_path, monkeypatch, another):
    """The slow test checks the build; here it is a package that is there at once."""
    cache, ran = tmp_path / "cache", []
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def run(command, made, lock):
        ran.append(command)
        names = {file.name for file in Path(command[-1]).iterdir()}
        assert names == {
            "ksrv",
            "native",
            "tools",
            "setup.py",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        }
        assert not list(Path(command[-1]).rglob("*.so"))
        assert (Path(command[-1]) / "ksrv/_native/tensor/tensor.pyx").exists()

    monkeypatch.setattr(interpreters, "_run", run)
    first = interpreters.interpreter_for(another, tmp_path)
    assert interpreters.interpreter_for(another, tmp_path) == first and len(ran) == 1
    assert another in ran[0] and not first.is_servers
    [place] = {entry.partition("=")[2] for entry in first.program[2:-1]}
    assert first.program[2] == f"ksrv={place}" and place.startswith(str(cache))
    assert not (Path(place) / "source").exists()


def test_an_installed_package_is_built_from_the_sources_that_it_carries(tmp_path, monkeypatch):
    """They are all files of a source folder, which this makes into an installed package as `setup.py` does."""
    source, package, again = tmp_path / "source", tmp_path / "packages/ksrv", tmp_path / "again"
    interpreters.copy_sources(source)
    copytree(source / "ksrv", package)
    for name in SOURCES:
        (package / SHIPPED / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).rename(package / SHIPPED / name)
    interpreters.copy_sources(source)
    monkeypatch.setattr(interpreters, "_PACKAGE", package)
    interpreters.copy_sources(again)
    made, wanted = (
        {file.relative_to(folder) for file in folder.rglob("*")} for folder in (again, source)
    )
    assert made == wanted and Path("native/tensor/padding.cpp") in made


def test_failed_build_names_interpreter_and_remedy(tmp_path, monkeypatch, another):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(interpreters, "_installer", lambda *given: ["false"])
    with pytest.raises(HandlerFailed) as caught:
        interpreters.interpreter_for(another, tmp_path)
    text = caught.value.message
    assert f"the interpreter {another} is Python 3." in text
    assert f"ksrv for {another} cannot be built: false ended with exit status 1" in text
    assert f"{another} -m pip install ksrv-" in text and "g++" in text


KILLED = """
import os, sys
from pathlib import Path
from ksrv.engine.processes import interpreters
os.environ["XDG_CACHE_HOME"] = sys.argv[1]
script = f"echo > {sys.argv[1]}/began; while [ ! -e {sys.argv[1]}/go ]; do sleep 0.05; done"
interpreters._built("key", lambda place, lock: interpreters._run(["sh", "-c", script], "it", lock))
"""


def test_build_of_a_killed_worker_is_not_duplicated(tmp_path):
    """The build continues without the worker, in the folder that another worker would build in."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as worker:
        wait_until((tmp_path / "began").exists)
        worker.kill()
    with (tmp_path / "ksrv/environments/key.lock").open() as lock:

        def is_free():
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        try:
            assert not is_free()
        finally:
            (tmp_path / "go").touch()
        wait_until(is_free)


def test_too_old_interpreter_is_refused(tmp_path, monkeypatch):
    asked = {"python": [3, 9, 1], "abi": "cpython-39-x86_64-linux-gnu", "ksrv": ""}
    monkeypatch.setattr(interpreters, "_ask", lambda path: asked)
    text = rf"{sys.executable} is Python 3\.9\.1, .*; ksrv needs Python 3\.11 or later"
    with pytest.raises(HandlerFailed, match=text):
        interpreters.interpreter_for(sys.executable, tmp_path)

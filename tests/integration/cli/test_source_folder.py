"""The folder `ksrv/` of a clone, whose native core is not built, in front of an installed ksrv."""

import os
import shutil
import subprocess
import sys

import pytest

from ksrv.testing import Server
from tests.support.paths import ROOT
from tests.support.servers.script_server import ScriptServer

DOUBLE = "def inference(x): return x * 2\n"
LOAD = "from ksrv.testing import load\nwith load('double.py') as model: print(model.infer({'x': [[4.0]]})['output'].tolist())\n"
SERVE = "import ksrv\n\n\ndef double(x):\n    return x * 2\n\n\nksrv.serve(double)\n"


@pytest.fixture
def clone(tmp_path):
    """A folder with the Python files of ksrv, and a model."""
    folder = tmp_path / "clone"
    shutil.copytree(
        ROOT / "ksrv", folder / "ksrv", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (folder / "double.py").write_text(DOUBLE)
    return folder


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The variables of a Python with ksrv in a separate folder."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "ksrv").symlink_to(ROOT / "ksrv")
    monkeypatch.setenv("PYTHONPATH", str(site))
    return dict(os.environ)


def run(clone, environment, *command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_in_the_clone_uses_the_installed_ksrv(clone, environment):
    (clone / "bright.py").write_text(LOAD)
    status, output, errors = run(clone, environment, "bright.py")
    assert status == 0, errors
    assert "[[8.0]]" in output
    assert "hides the ksrv that is installed in" in errors and "build_ext --inplace" in errors


def test_the_command_starts_in_the_clone(clone, environment):
    status, output, errors = run(clone, environment, "-m", "ksrv", "check", "double.py")
    assert status == 0, errors
    assert "double" in output


@pytest.mark.parametrize("beside", [True, False], ids=["in the clone", "elsewhere"])
def test_a_script_serves_from_the_clone(clone, environment, monkeypatch, tmp_path, beside):
    script = (clone if beside else tmp_path) / "bright.py"
    script.write_text(SERVE)
    monkeypatch.chdir(clone)
    with ScriptServer(script, start_timeout=120) as server:
        assert server.get("/v2/models/double/ready")[0] == 200


def test_a_server_of_a_test_starts_in_the_clone(clone, environment, monkeypatch):
    monkeypatch.chdir(clone)
    with Server("double.py", start_timeout=120) as server:
        assert server.get("/v2/models/double/ready")[0] == 200
        assert "hides the ksrv" not in server.log


def test_without_an_installed_ksrv_the_error_names_the_cause(clone):
    path = f"import sys; sys.path.insert(0, {str(clone)!r})"
    status, _, errors = run(clone, {}, "-S", "-c", f"{path}; import ksrv._native.batch.stages")
    assert status == 1
    assert f"{clone} is the source folder of ksrv: build the core there with" in errors
    assert "pip install ." in errors

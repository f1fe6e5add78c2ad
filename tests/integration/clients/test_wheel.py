"""The wheel: what is in it, and that it serves from an environment that has nothing of the checkout.

`KSRV_WHEEL` names a wheel that was built already (`make dist` builds it); without it
one is built here from a copy of the sources, in minutes.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ksrv._native.grpc.grpc_server import library_version
from tests.support.paths import ROOT, copy_sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HANDLER = "def inference(x): return 2 * x\n"

MODEL = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""

CLIENT = """
import json, sys, urllib.request
from pathlib import Path
import ksrv
assert Path(ksrv.__file__).is_relative_to(sys.prefix), ksrv.__file__
from ksrv.testing import Server
tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
with Server(sys.argv[1]) as server:
    request = urllib.request.Request(
        f"{server.url}/v2/models/doubler/infer", json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=30))
print(answer["outputs"][0]["data"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if given := os.environ.get("KSRV_WHEEL"):
        return Path(given)
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    copy_sources(copy)
    for stub in (copy / "ksrv/_native").rglob("*.pyi"):
        stub.unlink()  # a clone has none: the build writes them
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    subprocess.run([sys.executable, *command], cwd=copy, check=True, timeout=1400)
    [found] = out.glob("ksrv-*.whl")
    return found


def test_wheel_has_all_files_and_no_generated_files(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert [name for name in names if name.endswith(".so")] == [f"ksrv/_native/_core{suffix}"]
    if library_version():
        assert "ksrv/_native/libnghttp2.so.14" in names
    licences = {
        name.partition("/licenses/")[2]
        for name in names
        if "/licenses/" in name and not name.endswith("/")
    }
    assert licences == {
        "LICENSE",
        *(f"native/licences/{one}.txt" for one in ("libjpeg-turbo", "nghttp2")),
    }
    for pattern in ("*.py", "*.pyi", "*.pxd", "*.pyx", "py.typed", "*.binpb", "page/static/*"):
        wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ksrv").rglob(pattern)}
        assert wanted and wanted <= names
    leftovers = (".cpp", ".hpp", ".c", ".h", ".pyc", ".o", ".gcno")
    assert not [name for name in names if name.endswith(leftovers)]
    assert not [name for name in names if not name.startswith(("ksrv/", "ksrv-", "ksrv.libs/"))]


def test_the_installed_wheel_serves(wheel, tmp_path):
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "KSRV_"))
    }  # fmt: skip
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The dependencies are the running environment's. Python runs no .pth files of a folder that is added like this, so
    # an editable install of the checkout is not found.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    model = tmp_path / "models" / "doubler"
    model.mkdir(parents=True)
    (model / "handler.py").write_text(HANDLER)
    (model / "model.yaml").write_text(MODEL)
    run = subprocess.run(
        [venv / "bin" / "python", "-c", CLIENT, str(tmp_path / "models")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split("\n")[-2] == "[3.0, -4.0]"

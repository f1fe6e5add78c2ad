"""The container file's steps, run without a daemon: the wheel, its environment, and the server in it.

The server runs as user 1000, on a copy of the environment that is mounted read only, with nothing to
write to but a separate folder. That takes root and an interpreter that every user may read.
`KSRV_WHEEL` names a wheel that was built already, which leaves the reproducible build out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.paths import ROOT, copy_sources
from tests.support.servers.proxies import free_ports
from tests.support.wait_until import wait_until
from tests.unit.deploy.packages import DEPLOY

EPOCH = "1767225600"
LOCKS = DEPLOY / "requirements"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def build(folder, *command):
    """Copy the sources to a folder, and run a command of Python's there."""
    copy_sources(folder)
    # No cache of compiled files: it would show the first build twice.
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "CCACHE_DISABLE": "1"}
    subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, check=True, timeout=1400
    )
    return folder


def build_wheel(folder):
    build(folder, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", ".")
    [found] = (folder / "out").glob("ksrv-*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if given := os.environ.get("KSRV_WHEEL"):
        return Path(given)
    return build_wheel(tmp_path_factory.mktemp("sources"))


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: (one.date_time, archive.read(one)) for one in archive.infolist()}


@pytest.mark.skipif("KSRV_WHEEL" in os.environ, reason="the wheel was built elsewhere")
def test_the_same_sources_make_the_same_wheel_in_another_folder(wheel, tmp_path):
    time.sleep(2.1)  # a zip archive counts time by two seconds
    again = build_wheel(tmp_path / "a" / "deeper" / "folder")
    mine, other = contents(wheel), contents(again)
    assert [name for name in mine if mine[name] != other.get(name)] == []
    assert wheel.read_bytes() == again.read_bytes()


def test_the_same_sources_make_the_same_source_archive(tmp_path):
    archives = []
    for name in ("one", "two"):
        folder = build(tmp_path / name, "setup.py", "-q", "sdist")
        [archive] = (folder / "dist").glob("*.tar.gz")
        program = ROOT / "tools/release/reproducible_sdist.py"
        environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
        command = [sys.executable, str(program), str(archive)]
        subprocess.run(command, env=environment, check=True, timeout=60)
        archives.append(archive.read_bytes())
        time.sleep(1.1)
    assert archives[0] == archives[1]


@pytest.fixture(scope="module")
def interpreter():
    """A Python of this version that user 1000 may run."""
    found = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    if found is None or os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, setpriv and an interpreter that every user may run")
    return found


@pytest.fixture(scope="module")
def environment(interpreter, wheel, tmp_path_factory):
    """The environment of the second step: the locked packages, by their hashes, and the wheel."""
    venv = tmp_path_factory.mktemp("container") / "opt" / "ksrv"
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", str(venv / "bin/python")]  # fmt: skip
    locked = ["install", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCKS / "runtime.lock")]  # fmt: skip
    subprocess.run([*pip, *locked], check=True, timeout=900)
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=120
    )
    subprocess.run([*pip, "check"], check=True, timeout=120)
    shutil.copy(DEPLOY / "docker/healthcheck.py", venv)
    return venv


# A name space of mounts: the environment and the models read only, the temporary folder writable.
CONFINED = """
set -e
for folder in "$1" "$2"; do mount --bind "$folder" "$folder"; mount -o remount,bind,ro "$folder"; done
shift 2
exec setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set=-all "$@"
"""


def test_the_entry_command_serves_as_another_user_on_a_read_only_root(
    environment, tmp_path_factory
):
    base = tmp_path_factory.mktemp("run")
    write_model(base / "models", "double", DOUBLE, VECTOR)
    scratch = base / "tmp"
    scratch.mkdir()
    os.chown(scratch, 1000, 1000)
    for folder in (environment.parents[1], base, *base.parents[:2]):
        folder.chmod(0o755)
    dockerfile = re.sub(r"\\\n", " ", (DEPLOY / "docker/Dockerfile").read_text())
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    [arguments] = re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)
    command = [*json.loads(entry), *json.loads(arguments)]
    command = [word.replace("/models", str(base / "models")) for word in command]
    http, grpc = free_ports(2)
    variables = {
        "PATH": f"{environment}/bin:/usr/bin:/bin",
        "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1",
        "KSRV_HTTP": f"127.0.0.1:{http}", "KSRV_GRPC": f"127.0.0.1:{grpc}",
        "KSRV_LOG_FORMAT": "json", "KSRV_DRAIN_DELAY": "0",
    }  # fmt: skip
    log = (base / "log").open("w+")
    server = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", CONFINED, "sh", str(environment), str(base / "models"), *command],
        env=variables, cwd=scratch, stdout=log, stderr=log,
    )  # fmt: skip

    def healthy():
        assert server.poll() is None, Path(log.name).read_text()
        check = [str(environment / "bin/python"), str(environment / "healthcheck.py")]
        done = subprocess.run(check, env=variables, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    try:
        wait_until(healthy, seconds=120)
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert re.search(r"^Uid:\t1000\t1000\t1000\t1000$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{http}/v2/models/double/infer",
            json.dumps({"inputs": [x]}).encode(),
            {"Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request, timeout=30))
        assert answer["outputs"][0]["data"] == [2, 4, 6, 8]
    finally:
        server.terminate()
        assert server.wait(60) == 0
    for line in Path(log.name).read_text().splitlines():
        assert "Permission denied" not in line
        assert "Read-only file system" not in line

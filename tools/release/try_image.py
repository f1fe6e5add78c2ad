"""Serves a model in the file system of the container, as a container runtime with the strictest settings would.

    unshare --mount --pid --net --fork python3 tools/release/try_image.py ROOT IMAGE.json

The namespaces are this program's: it makes the root read-only, and mounts /tmp, /proc, /dev and the models. Environment,
user, entry point and health check are of the image's configuration, as `buildah inspect` prints it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HANDLER = "def inference(x): return 2 * x\n"
MODEL = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""
TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def mount_all(root: Path) -> None:
    """Mount what a runtime mounts, and the root read-only below it."""
    run("mount", "--make-rprivate", "/")
    run("mount", "--bind", str(root), str(root))
    (root / "models").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / "models"))
    model = root / "models/double"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (model / "model.yaml").write_text(MODEL)
    run("mount", "-o", "remount,bind,ro", str(root))
    run("mount", "-o", "remount,ro", str(root / "models"))
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / "tmp"))
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    run("mount", "--rbind", "/dev", str(root / "dev"))
    run("ip", "link", "set", "lo", "up")


def infer() -> object:
    body = json.dumps({"inputs": [TENSOR]}).encode()
    url = "http://127.0.0.1:8080/v2/models/double/infer"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["outputs"][0]["data"]


def main() -> None:
    """Fail unless the container serves, and cannot write."""
    root = Path(sys.argv[1])
    image = json.loads(Path(sys.argv[2]).read_text())["Docker"]["config"]
    user, group = image["User"].split(":")
    assert user != "0", "the image runs as root"
    environment = dict(entry.split("=", 1) for entry in image["Env"])
    environment["KSRV_INSECURE"] = "true"
    mount_all(root)
    drop = [
        "--reuid",
        user,
        "--regid",
        group,
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ]
    # The environment's PATH is for the programs inside.
    inside = [
        str(shutil.which("chroot")),
        str(root),
        "setpriv",
        *drop,
        "env",
        "-C",
        image["WorkingDir"],
    ]
    touched = subprocess.run([*inside, "touch", "/opt/ksrv/x", "/models/x"], capture_output=True, text=True, check=False)  # fmt: skip
    assert touched.returncode != 0 and touched.stderr.count("Read-only file system") == 2, touched
    command = [*inside, *image["Entrypoint"], *image["Cmd"]]
    start = time.monotonic()
    server = subprocess.Popen(command, env=environment)
    check = [*inside, *image["Healthcheck"]["Test"][1:]]
    while subprocess.run(check, env=environment, capture_output=True, check=False).returncode != 0:
        assert server.poll() is None and time.monotonic() - start < 120, (
            "the server does not get healthy"
        )
        time.sleep(0.1)
    print(f"healthy after {time.monotonic() - start:.1f} s", flush=True)
    status = (root / f"proc/{server.pid}/status").read_text()  # of this PID namespace
    assert (
        f"Uid:\t{user}\t{user}\t{user}\t{user}" in status and "CapBnd:\t0000000000000000" in status
    )
    assert infer() == [3.0, -4.0]
    server.terminate()
    assert server.wait(60) == 0
    print(
        f"user {user} on a read-only root: the container answers, and ends on SIGTERM", flush=True
    )


if __name__ == "__main__":
    os.umask(0o022)
    main()

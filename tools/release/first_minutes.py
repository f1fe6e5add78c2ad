"""Does with a release what README and SECURITY.md say: verify it, install the wheel, serve a model and call it.

    python3 first_minutes.py dist README.md SECURITY.md

It runs in a system that has Python, curl and openssl, and neither a compiler nor ksrv's sources (`make test-release`).
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

MOST_INSTALLATION_CPU_S = 20
"""CPU time, which does not depend on the network or on what else the machine does."""
PHOTO = (
    "import cv2, numpy; cv2.imwrite('photo.jpg', numpy.full((480, 640, 3), (60, 90, 120), 'u1'))"
)


def say(text: str) -> None:
    print(f"first minutes: {text}", flush=True)


def run(command: list[str] | str, **options: object) -> str:
    """Run a command, or a line of a shell, and return its output."""
    done = subprocess.run(
        command, shell=isinstance(command, str), capture_output=True, text=True, check=False, **options,
    )  # type: ignore[call-overload]  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"error: {command} failed\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def verify(dist: Path, security: str) -> None:
    """Run the command of SECURITY.md, and see that it refuses a file with one other byte."""
    [command] = re.findall(r"^(openssl pkeyutl -verify .*)$", security, re.MULTILINE)
    say(run(command, cwd=dist).splitlines()[0])
    with tempfile.TemporaryDirectory() as scratch:
        forged = shutil.copytree(dist, Path(scratch, "dist"))
        [archive] = forged.glob("*.tar.gz")
        archive.write_bytes(archive.read_bytes() + b"\0")
        refused = subprocess.run(command, shell=True, cwd=forged, capture_output=True, check=False)
        assert refused.returncode != 0, "a changed file was accepted"


def install(dist: Path, venv: Path) -> None:
    """Install the wheel for this Python, without a compiler."""
    compilers = [name for name in ("cc", "gcc", "g++", "clang") if shutil.which(name)]
    assert not compilers, f"this system is not bare: {compilers}"
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    [wheel] = dist.glob(f"ksrv-*-{tag}-*.whl")
    run([sys.executable, "-m", "venv", str(venv)])
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run([str(venv / "bin/pip"), "install", "-q", str(wheel)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"{wheel.name}: installed in {time.monotonic() - start:.1f} s, {cpu:.1f} s of the CPU")
    assert cpu < MOST_INSTALLATION_CPU_S, f"the installation took {cpu:.1f} s of the CPU"


def serve(venv: Path, readme: str) -> None:
    """Serve README's first model, and call it as README does."""
    [handler] = re.findall(r'```python title="bright.py"\n(.*?)```', readme, re.DOTALL)
    [client] = re.findall(r"From Python:\n\n```python\n(.*?)```", readme, re.DOTALL)
    [_, curl] = re.findall(r"^(ksrv serve bright\.py|curl .*bright/infer)$", readme, re.MULTILINE)
    Path("bright.py").write_text(handler)
    run([str(venv / "bin/python"), "-c", PHOTO])
    environment = os.environ | {"PATH": f"{venv}/bin:{os.environ['PATH']}"}
    doctor = run("ksrv doctor; test $? -le 1", env=environment)
    [found] = re.findall(r"^\w+ +HTTP/2: (.*)$", doctor, re.MULTILINE)
    [decoder] = re.findall(r"^\w+ +JPEG: (\S+)", doctor, re.MULTILINE)
    assert "libnghttp2" in found and decoder == "libjpeg-turbo", doctor
    start = time.monotonic()
    with Path("log").open("w") as log:
        server = subprocess.Popen(["ksrv", "serve", "bright.py"], env=environment, stderr=log)
    try:
        while True:
            assert server.poll() is None and time.monotonic() - start < 60, Path("log").read_text()
            try:
                ready = "http://127.0.0.1:8080/v2/health/ready"
                urllib.request.urlopen(ready, timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        say(f"serves after {time.monotonic() - start:.1f} s; {found}; {decoder}")
        answer = run(curl + " -sS", env=environment)
        assert '"shape":[1,3]' in answer, answer
        say(answer.strip())
        say(run([str(venv / "bin/python"), "-c", client]).strip())
        page = run("curl -sS -H 'Accept: text/html' http://127.0.0.1:8080/").encode()
        assert page.lower().startswith(b"<!doctype html>"), page[:100]
    finally:
        server.terminate()
        assert server.wait(60) == 0


def main() -> None:
    """Do it all in an empty folder."""
    dist = Path(sys.argv[1]).resolve()
    readme, security = (Path(name).read_text() for name in sys.argv[2:])
    if (dist / "SHA256SUMS.sig").exists():
        verify(dist, security)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        venv = Path(folder, "venv")
        install(dist, venv)
        serve(venv, readme)


if __name__ == "__main__":
    main()

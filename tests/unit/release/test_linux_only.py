"""Builds on macOS and Windows end with the container's command, before anything is compiled or installed."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FAKE = """
import runpy, sys
import setuptools.command.build_ext  # an installer imports it before setup.py
sys.platform = sys.argv.pop(1)
if sys.platform == "win32":
    sys.modules["fcntl"] = None  # an import of it fails, as on Windows
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def run_on(system: str, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", FAKE, system, str(ROOT / script), *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
@pytest.mark.parametrize("script", ["setup.py", "tools/system_packages.py"])
def test_build_elsewhere_ends_with_the_containers_command(script, system, name):
    done = run_on(system, script, "build_ext")
    assert done.returncode == 1
    first, *_ = done.stderr.splitlines()
    assert first.startswith(f"error: ksrv runs on Linux only, and this is {name}")
    assert "docker build -f deploy/docker/Dockerfile" in done.stderr
    assert "Traceback" not in done.stderr and "g++" not in done.stderr + done.stdout


def test_setup_reads_metadata_on_linux():
    done = run_on("linux", "setup.py", "--version")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "0.1.0"), done.stderr


def test_readme_says_linux_only_before_the_first_example():
    first = (ROOT / "README.md").read_text().partition("```")[0]
    assert "Linux only" in first and "deploy/README.md" in first

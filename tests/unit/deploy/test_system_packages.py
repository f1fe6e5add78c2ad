"""tools/system_packages.py installs missing programs, or prints the command that does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "tools" / "system_packages.py"
APT_GET = """#!/bin/sh
echo "$*" >> {calls}
case "$*" in *--print-uris*) echo "'http://x/a.deb' a.deb 12000000 SHA256:0";; esac
exit {status}
"""
SUDO = """#!/bin/sh
shift
exec "$@"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that is the whole PATH: it has a shell and no other program."""
    (programs := tmp_path / "bin").mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    (programs / "true").symlink_to(str(shutil.which("true")))
    return programs


def add(machine: Path, name: str, text: str) -> None:
    (machine / name).write_text(text)
    (machine / name).chmod(0o755)


def run(machine: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    return subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False
    )


def test_machine_without_apt_get_gets_one_command_to_copy(machine: Path) -> None:
    done = run(machine)
    [command] = [line for line in done.stderr.splitlines() if line.startswith("    sudo")]
    assert done.returncode == 1 and not done.stdout
    for package in ("g++", "pkg-config", "libjpeg62-turbo-dev", "curl", "git", "openssl"):
        assert package in command.split()


def test_missing_packages_are_installed_with_their_size_in_one_line(machine: Path) -> None:
    calls = machine / "calls"
    add(machine, "sudo", SUDO)
    add(machine, "apt-get", APT_GET.format(calls=calls, status=0))
    add(machine, "curl", "#!/bin/sh\n")
    done = run(machine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("apt-get install g++ ") and done.stdout.endswith(": 12 MB\n")
    update, _, install = calls.read_text().splitlines()
    assert update == "update -qq" and "-y" in install.split() and "git" in install.split()
    assert "curl" not in install.split()


def test_failed_installation_shows_what_apt_get_said(machine: Path) -> None:
    add(machine, "sudo", SUDO)
    add(machine, "apt-get", "#!/bin/sh\necho no network >&2\nexit 100\n")
    done = run(machine)
    assert done.returncode == 100 and "no network" in done.stderr


def test_complete_machine_is_left_alone(machine: Path) -> None:
    for name in ("g++", "curl", "git", "openssl", "pkg-config"):
        add(machine, name, "#!/bin/sh\nexit 0\n")
    add(machine, "sudo", SUDO)
    add(machine, "apt-get", APT_GET.format(calls=machine / "calls", status=0))
    done = run(machine)
    installed = (machine / "calls").read_text() if (machine / "calls").exists() else ""
    for package in ("g++", "curl", "git", "openssl", "pkg-config", "libjpeg62-turbo-dev"):
        assert package not in installed.split()
    assert done.returncode == 0

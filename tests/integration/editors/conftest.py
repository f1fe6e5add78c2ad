"""pyright, the checker and language server of VS Code's Python, if its package and node are installed."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="session")
def pyright(tmp_path_factory):
    """Return the command line of pyright's language server or checker by its name."""
    pytest.importorskip("pyright", reason="pyright is not installed: pip install pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs node, which is not installed")
    folder = tmp_path_factory.mktemp("pyright")
    command = [sys.executable, "-m", "pyright", "--version"]
    tried = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    if tried.returncode:
        pytest.skip(f"pyright does not start: {tried.stdout}{tried.stderr}")

    def program(name):
        return [sys.executable, "-c", f"from pyright.{name} import entrypoint; entrypoint()"]

    return program


@pytest.fixture
def opened(tmp_path):
    """Return a folder whose checkers find this ksrv, which may be installed in a form that only Python finds."""
    settings = {"extraPaths": [str(ROOT)], "venvPath": sys.prefix, "venv": "."}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    return tmp_path

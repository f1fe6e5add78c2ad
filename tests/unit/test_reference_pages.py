"""The pages of docs/reference that tools/reference_pages.py makes are current and complete."""

import subprocess
import sys

from ksrv.cli.main import SECTIONS
from ksrv.repository.json_schema import json_schema
from ksrv.server.settings_sources import fields
from tests.support.paths import ROOT

SETTINGS, KEYS, OPTIONS = (
    (ROOT / "docs/reference" / name).read_text()
    for name in ("settings.md", "model-yaml.md", "options.md")
)


def test_pages_are_what_the_code_says():
    command = [sys.executable, "tools/reference_pages.py", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make references`"


def test_every_setting_key_and_command_is_there():
    for field in fields().values():
        assert f"`{field.variable}`" in SETTINGS
    for definition in json_schema()["$defs"].values():
        for key in definition.get("properties", {}):
            assert f"| `{key}` |" in KEYS
    for commands in SECTIONS.values():
        for name in commands:
            assert f"## ksrv {name}\n" in OPTIONS

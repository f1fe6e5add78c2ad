"""The pages of docs/reference that tools/reference_pages.py makes are current and complete."""

import importlib.util

import pytest

from ksrv.cli.main import SECTIONS
from ksrv.repository.json_schema import json_schema
from ksrv.server.settings_sources import fields
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location(
        "reference_pages", ROOT / "tools/reference_pages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {path.name: (path, text) for path, text in module.pages().items()}


@pytest.mark.parametrize("name", ["settings.md", "model-yaml.md", "options.md"])
def test_page_is_what_the_code_says(pages, name):
    path, text = pages[name]
    assert path.read_text() == text, "the code has changed: run `make references`"


def test_every_setting_key_and_command_is_there(pages):
    settings, keys, options = (
        pages[name][1] for name in ("settings.md", "model-yaml.md", "options.md")
    )
    for field in fields().values():
        assert f"`{field.variable}`" in settings
    for definition in json_schema()["$defs"].values():
        for key in definition.get("properties", {}):
            assert f"| `{key}` |" in keys
    for commands in SECTIONS.values():
        for name in commands:
            assert f"## ksrv {name}\n" in options

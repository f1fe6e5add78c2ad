"""No text promises a package index: it names packages that are there, or the file of ksrv's wheel."""

import re
import tomllib

import pytest

from tests.support.paths import ROOT

TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
    *(path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".md", ".yaml")),
    ROOT / "deploy/docker/Dockerfile",
    *(path for folder in ("ksrv", "examples") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "ksrv/cli/templates").rglob("*.in"),
]
BY_NAME = re.compile(r"(?<![\w./-])ksrv(?![\w./-])")
"""ksrv as a requirement: with no folder before it and no `-0.1.0-...whl` after it."""


def commands(text: str) -> list[str]:
    """Return the commands of `pip install` in lines, and in code within a sentence that two lines share."""
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # a string of Python in two parts
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    in_sentences = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose)]
    return [
        command
        for line in [*text.splitlines(), *in_sentences]
        for command in re.findall(r"pip install ([^`;&()#\"{]*)", line)
    ]


def test_no_command_asks_an_index_for_ksrv():
    found = {
        str(path.relative_to(ROOT)): command
        for path in TEXTS
        for command in commands(path.read_text())
        if BY_NAME.search(command)
    }
    assert not found


@pytest.mark.parametrize(
    "command",
    ["pip install ksrv", "pip install 'ksrv[torch]'", "pip install -U torch 'ksrv[onnx]>=0.1'"],
)
def test_a_promise_of_an_index_is_found(command):
    assert BY_NAME.search(commands(f"Run `{command}`.")[0])


@pytest.mark.parametrize(
    "command", ["pip install ksrv-0.1.0-cp311-*.whl", "pip install .", "pip install /opt/ksrv/x"]
)
def test_a_file_is_no_promise(command):
    assert not BY_NAME.search(commands(command)[0])


@pytest.mark.parametrize(
    ("file", "extra"),
    [
        ("ksrv/server/page/viewer.py", "docs"),
        ("ksrv/engine/requests/audio_input.py", "audio"),
        ("ksrv/observe/tracing.py", "otel"),
        ("ksrv/ray/installation.py", "ray"),
        ("ksrv/cli/signature.py", "signature"),
        ("ksrv/pull/source.py", "pull"),
    ],
)
def test_error_names_every_package_of_the_extra(file, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command, *_ = commands((ROOT / file).read_text())
    for requirement in project["optional-dependencies"][extra]:
        assert re.split("[<>=]", requirement)[0] in command

"""The operator documents name only existing messages and settings, and their links work."""

import ast
import functools
import re

import pytest

from ksrv.server.settings_sources import fields
from tests.unit.deploy.packages import DEPLOY

ROOT = DEPLOY.parent
PAGES = [
    ROOT / "docs/production.md", ROOT / "docs/runbooks.md", ROOT / "docs/security.md",
    ROOT / "docs/metrics.md", ROOT / "docs/reload.md", ROOT / "SECURITY.md", DEPLOY / "README.md",
]  # fmt: skip
PAGE_IDS = [path.name for path in PAGES]
OTHER_FLAGS = {"--build", "--read-only", "--tmpfs", "--from-file", "--build-arg", "--target",
               "--no-deps", "--fit", "--models", "--requests", "--rate", "--cpuset-cpus", "--now", "--rm", "--require-hashes", "--print-config", "--format", "--user", "--quiet", "--check"}  # fmt: skip


@functools.cache
def texts():
    """Return every string in ksrv's sources."""
    found = set()
    for path in (ROOT / "ksrv").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.split(r"%[a-z.0-9]+", node.value))
    return found


def messages():
    text = (ROOT / "docs/runbooks.md").read_text()
    return [
        line
        for block in re.findall(r"```text\n(.*?)```", text, re.S)
        for line in block.splitlines()
    ]


@pytest.mark.parametrize("message", messages())
def test_every_message_is_in_the_sources(message):
    known = "\n".join(texts())
    for piece in message.split("…"):
        assert piece.strip(" '") in known, piece


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_named_setting_exists(page):
    flags = {field.flag for field in fields().values()} | OTHER_FLAGS
    variables = {field.variable for field in fields().values()}
    text = page.read_text()
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
        assert flag in flags or flag.replace("--no-", "--") in flags, flag
    for variable in re.findall(r"\bKSRV_[A-Z_]+\b", text):
        assert variable in variables | {"KSRV_CONFIG"}, variable


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_link_and_named_file_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        if name.startswith("http"):
            continue
        linked = (page.parent / name) if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in anchors, target
    for name in re.findall(r"`(deploy/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name

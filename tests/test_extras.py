"""The extras of pyproject.toml: what a user installs with them is used."""

import ast
import functools
import re
import tomllib

import pytest

from tests.support.paths import ROOT

MODULES = {
    "mlcommons-loadgen": "mlperf_loadgen",
    "model-signing": "model_signing",
    "pyOpenSSL": "model_signing",  # which does not declare it
    "swagger-ui-bundle-v2": "swagger_ui_bundle",
}
"""The modules of distributions that have another name."""

FOR_DEVELOPMENT = {"test", "bench", "demo"}


def extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in FOR_DEVELOPMENT:
            for requirement in requirements:
                yield extra, re.match(r"[A-Za-z0-9_-]+", requirement)[0]


@functools.cache
def imported():
    names = set()
    for file in (ROOT / "ksrv").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(("extra", "distribution"), extras())
def test_what_an_extra_installs_is_imported(extra, distribution):
    module = MODULES.get(distribution, distribution)
    assert {module, distribution.partition("-")[0]} & imported(), extra

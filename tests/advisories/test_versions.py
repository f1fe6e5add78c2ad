"""No allowed and no locked release of a dependency has a known vulnerability that requests could reach."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.paths import ROOT

FIXED = {
    "CVE-2025-67221": ("orjson", "3.11.6"),
    "CVE-2024-27454": ("orjson", "3.9.15"),
    "CVE-2026-0994": ("protobuf", "5.29.6"),
    "CVE-2025-4565": ("protobuf", "5.29.5"),
    "CVE-2024-1135": ("gunicorn", "22.0.0"),
    "CVE-2024-6827": ("gunicorn", "22.0.0"),
    "CVE-2024-7246": ("grpcio", "1.65.4"),
    "CVE-2025-53644": ("opencv-python-headless", "4.12.0.88"),
    "CVE-2023-4863": ("opencv-python-headless", "4.8.1.78"),
    "CVE-2025-32434": ("torch", "2.6.0"),
    "CVE-2026-24747": ("torch", "2.10.0"),
    "CVE-2025-62593": ("ray", "2.52.0"),
}
"""The first release that is mended."""


def allowed() -> dict[str, Version]:
    """The oldest release of each dependency that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [*project["dependencies"], *(one for key in ("torch", "ray") for one in extras[key])]
    return {
        one.name: min(Version(bound.version) for bound in one.specifier if bound.operator == ">=")
        for one in map(Requirement, names)
    }


def locked() -> list[tuple[str, str, Version]]:
    files = [ROOT / "constraints.txt", *(ROOT / "deploy/requirements").glob("*.lock")]
    assert len(files) > 1
    return [
        (file.name, name, Version(version))
        for file in files
        for name, version in re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;]+)", file.read_text())
    ]


@pytest.mark.parametrize("number", FIXED)
def test_vulnerable_release_is_not_allowed(number: str) -> None:
    package, fixed = FIXED[number]
    assert allowed()[package] >= Version(fixed)
    for file, name, version in locked():
        assert name != package or version >= Version(fixed), (file, name, version)

"""Compares an interpreter with the `python_env.yaml` and the `requirements.txt` of a model."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ksrv.model.fault import ConfigError
from ksrv.repository.yaml_document import Document, read_settings_text

PYTHON_ENV, REQUIREMENTS = "python_env.yaml", "requirements.txt"
STAND_INS = {"mlflow": "mlflow-skinny", "xgboost": "xgboost-cpu"}
"""Distributions that have the modules of another distribution."""


def differences(folder: Path) -> list[str]:
    """Return how this interpreter differs from the environment that saved the model.

    Returns:
        Facts such as "scikit-learn 1.9.1 (saved with ==1.4.2)"; empty if nothing differs.
    """
    try:
        return [*_python(folder), *_packages(folder)]
    except (ConfigError, ValueError) as error:  # `ValueError`: a requirement is malformed
        return [str(error)]


def advice(folder: Path) -> str:
    """Return how to make the environment that the model needs."""
    return (
        f"make an environment (python -m venv DIR; DIR/bin/python -m pip install -r {folder / REQUIREMENTS}), and name it "
        f"in {folder / 'model.yaml'}: 'python: DIR'"
    )


def _python(folder: Path) -> Iterator[str]:
    """Yield the difference between the versions of Python, without their last number."""
    path = folder / PYTHON_ENV
    value = Document.read(path).value if path.is_file() else None
    wanted = str(value.get("python") or "") if isinstance(value, dict) else ""
    if wanted and wanted.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        yield f"Python {platform.python_version()} (saved with {wanted})"


def _packages(folder: Path) -> Iterator[str]:
    """Yield each package that is missing, or has another version than the model requires."""
    from packaging.requirements import Requirement  # MLflow needs this package, ksrv does not

    path = folder / REQUIREMENTS
    for line in read_settings_text(path).splitlines() if path.is_file() else ():
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")) or "://" in text:
            continue
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate():
            continue
        found = _installed(needed.name) or _installed(STAND_INS.get(needed.name, ""))
        if not found:
            yield f"{needed.name} is missing (saved with {needed.specifier or 'any version'})"
        elif not needed.specifier.contains(found, prereleases=True):
            yield f"{needed.name} {found} (saved with {needed.specifier})"


def _installed(name: str) -> str:
    """Return the version of a distribution; "" if it is not installed."""
    try:
        return metadata.version(name) if name else ""
    except metadata.PackageNotFoundError:
        return ""

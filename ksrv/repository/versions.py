"""Lists the version folders of a model, and chooses the versions to serve."""

import re
from pathlib import Path

from ksrv.model.config import VersionPolicy

_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")


def version_folders(path: Path) -> list[Path]:
    """Return the folders in a model's folder that are named by whole numbers, in rising order."""
    return sorted(
        (child for child in path.iterdir() if _VERSION.fullmatch(child.name) and child.is_dir()),
        key=lambda child: int(child.name),
    )


def choose_versions(policy: VersionPolicy, versions: list[str]) -> list[str]:
    """Return the versions that are served, in rising order; a policy may name missing versions.

    Args:
        versions: The versions on disk, in rising order.
    """
    if policy.specific:
        return [str(number) for number in sorted(policy.specific)]
    return versions[-policy.latest :] if policy.latest else versions

"""Lists the version folders of a model, and chooses the versions to serve."""

import re
from collections.abc import Collection
from pathlib import Path

from ksrv.model.config import VersionPolicy

_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")


def version_folders(path: Path) -> dict[str, Path]:
    """Return the folders in a model's folder that are named by whole numbers, by name in rising order."""
    found = {child.name: child for child in path.iterdir() if _VERSION.fullmatch(child.name)}
    return {name: found[name] for name in sorted(found, key=int) if found[name].is_dir()}


def choose_versions(policy: VersionPolicy, versions: Collection[str]) -> tuple[list[str], str]:
    """Return the versions that are served, in rising order, and an error if the policy names missing versions.

    Args:
        versions: The versions on disk, in rising order. Their names are numbers, but a single version may have any
            name, such as "".
    """
    shadow = {str(policy.shadow.version)} if policy.shadow else set()
    others = [version for version in versions if version not in shadow]
    # [-0:] is all of them
    wanted = shadow.union(map(str, policy.specific or others[-policy.latest :]))
    missing = ", ".join(sorted(wanted.difference(versions), key=int))
    fault = f"names the versions {missing}, but the folder has {', '.join(versions)}"
    return [version for version in versions if version in wanted], fault if missing else ""

"""Print the oldest release of each dependency that pyproject.toml allows, one requirement a line, for pip's -c.

    python tools/oldest_dependencies.py [EXTRA ...]

Without EXTRA it prints the dependencies of every installation.
"""

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*>=\s*([0-9.]+)")


def oldest(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return NAME==LOWER BOUND of each dependency that has one.

    Args:
        project: The section `project` of pyproject.toml.
        extras: Extras whose dependencies are listed too.
    """
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    bounds = [REQUIREMENT.match(requirement) for requirement in found]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


if __name__ == "__main__":
    document = tomllib.loads(Path("pyproject.toml").read_text())
    print("\n".join(oldest(document["project"], sys.argv[1:])))

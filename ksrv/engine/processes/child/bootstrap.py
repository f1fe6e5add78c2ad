"""Starts a handler process in an interpreter that has packages of its own: `python bootstrap.py NAME=FOLDER... -- ...`.

ksrv is always the server's. Of what ksrv needs, the interpreter's own package is taken if it has one, and else the
server's. Nothing else of the server's packages is found.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class LentPackages(MetaPathFinder):
    """Finds packages in folders of the server's.

    Args:
        folders: The folder of each package, by its name.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package is; None for any other module."""
        folder = self._folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder])


def main() -> int:
    """Run the handler process.

    Returns:
        The exit status.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    end = sys.argv.index("--")
    folders = dict(argument.split("=", 1) for argument in sys.argv[1:end])
    sys.meta_path.insert(0, LentPackages({"ksrv": folders.pop("ksrv")}))
    sys.meta_path.append(LentPackages(folders))
    from ksrv.engine.processes.child import program

    return program.main(sys.argv[end + 1 :])


if __name__ == "__main__":
    sys.exit(main())

"""Starts a handler process in an interpreter with other packages: `python bootstrap.py NAME=FOLDER... -- ARGUMENTS`.

Each NAME=FOLDER is a package of the server and the folder that has it. ksrv is always imported from the server. Any
other of these packages is imported from the server only if the interpreter does not have it. No further package of the
server can be imported. The arguments after `--` are passed to `program.py`.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class LentPackages(MetaPathFinder):
    """Finds packages in folders of the server.

    Args:
        folders: The folder that has the package, by the name of the package.
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
    # Python puts the folder of a script first into the path: its modules would hide modules of the handler.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    end = sys.argv.index("--")
    folders = dict(argument.split("=", 1) for argument in sys.argv[1:end])
    sys.meta_path.insert(0, LentPackages({"ksrv": folders.pop("ksrv")}))
    sys.meta_path.append(LentPackages(folders))  # asked last, so the interpreter's packages win
    from ksrv.engine.processes.child import program

    return program.main(sys.argv[end + 1 :])


if __name__ == "__main__":
    sys.exit(main())

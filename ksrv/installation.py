"""Finds the ksrv that is installed: for Python programs that ksrv starts, and if an unbuilt source folder hides it.

ksrv starts programs with `python -P`, so that Python searches neither the current folder nor the folder of a script
first: a `ksrv/` or a `logging.py` there would hide the installed module. `with_ksrv` gives such a program a PYTHONPATH.

Without `-P`, Python searches the folder of the script, or the current folder, before the folders of installed
packages. In a clone, after `pip install .`, it so finds the clone's `ksrv/`, whose native core was never built.
`ksrv/__init__.py` then calls `use_installed`.
"""

import os
import site
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def core_files(package: Path) -> list[Path]:
    """Return the possible files of the native core in a ksrv package, for this Python.

    Args:
        package: The folder `ksrv`.
    """
    return [package / "_native" / f"_core{suffix}" for suffix in EXTENSION_SUFFIXES]


def with_ksrv(inherited: str) -> str:
    """Return a PYTHONPATH on which the ksrv of this process is found, from any working directory.

    Args:
        inherited: The PYTHONPATH to start from, whose folders stay first; "" for none.
    """
    found = [os.path.abspath(entry) for entry in inherited.split(os.pathsep) if entry]
    home = str(Path(__file__).resolve().parent.parent)
    needless = home in found or home in site.getsitepackages()
    return os.pathsep.join([*found, *([] if needless else [home])])


def use_installed() -> None:
    """Replace this ksrv, which is not built, by the installed ksrv, and log it."""
    installed = _hidden_installation()
    if installed is not None:
        _replace_by(installed)


def _hidden_installation() -> ModuleSpec | None:
    package = Path(__file__).parent
    others = [path for path in sys.path if Path(path).resolve() != package.parent.resolve()]
    found = PathFinder.find_spec("ksrv", others)
    if found is None or found.origin is None:
        return None
    is_built = any(file.exists() for file in core_files(Path(found.origin).parent))
    return found if is_built else None


def _replace_by(installed: ModuleSpec) -> None:
    """Import the installed ksrv under the name `ksrv`, and forget the modules of this folder."""
    package = Path(__file__).parent
    warnings.warn(
        f"{package} hides the ksrv that is installed in {installed.origin}, which is used, because the native core "
        f"of {package} is not built. Leave {package.parent}, or build the core there with `python setup.py build_ext "
        f"--inplace`",
        RuntimeWarning,
        stacklevel=4,  # the line that imports ksrv: above this function, `use_installed` and `ksrv/__init__.py`
    )
    for name in [name for name in sys.modules if name.startswith("ksrv.")]:
        del sys.modules[name]
    module = module_from_spec(installed)
    sys.modules["ksrv"] = module
    assert installed.loader is not None, "a package with a file has a loader"
    installed.loader.exec_module(module)

"""The native core. Importing this package lets Python find its compiled modules.

All Cython modules and the C++ core are linked into one file (`_core*.so`), so that C++ objects such
as the buffer pool exist once in a process. Python would look for a file for each module.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from ksrv.installation import core_files

_FILES = core_files(Path(__file__).parent.parent)


class _CoreLoader(ExtensionFileLoader):
    """Loads a module from the core's file. If a library is missing, the error names the remedy."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            return super().create_module(spec)
        except ImportError as error:
            raise ImportError(
                f"the native core cannot be loaded: {error}; install the missing library, or the wheel of a"
                " release or of `make dist`, which includes the libraries",
                name=spec.name,
            ) from error


class CompiledModules:
    """Makes Python import each compiled module, here and in the dialects, from the same file."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a compiled module is, or None for any other module."""
        module = name.rpartition(".")[2]
        if not name.startswith("ksrv.") or not path or not Path(path[0], f"{module}.pyx").exists():
            return None
        for file in _FILES:
            if file.exists():
                loader = _CoreLoader(name, str(file))
                return spec_from_file_location(name, file, loader=loader)
        raise ImportError(
            f"the native core is not built for this Python: {_FILES[0]} is missing. {_FILES[0].parents[2]} is the "
            "source folder of ksrv: build the core there with `python setup.py build_ext --inplace`, or install ksrv "
            "with `pip install .` and run Python elsewhere",
            name=name,
        )


sys.meta_path.insert(0, CompiledModules)

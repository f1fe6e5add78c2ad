"""Builds the native core: every ``.pyx`` in ``ksrv`` and ``native/*/*.cpp`` into one extension file.

The metadata lives in ``pyproject.toml``, the build itself in ``tools/native_build.py``. The typed stub of
each module is written beside it by ``tools/native_stubs.py``.

Environment:
    CXX, CPPFLAGS, CFLAGS, CXXFLAGS, LDFLAGS: The compiler and flags of the caller, which win.
    KSRV_SYMBOLS: ``1`` keeps symbols, for profilers.
    KSRV_SANITIZE: ``1`` builds with the address and undefined-behaviour sanitizers.
    KSRV_TRACE: ``1`` builds for gcov, which counts lines of generated and own C++ with or without
        the GIL and on any thread; for coverage only, never for timing.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
from linux_only import check_system
from native_build import Builder, BuildFailed
from native_declarations import write_declarations
from native_stubs import write_stubs


class BuildNative(build_ext):
    """Builds the only extension file with `Builder`."""

    def build_extensions(self) -> None:
        flavour = "plain"
        if os.environ.get("KSRV_SANITIZE") == "1":
            flavour = "sanitize"
        elif os.environ.get("KSRV_TRACE") == "1":
            flavour = "trace"
        jobs = self.parallel if isinstance(self.parallel, int) else 0
        try:
            stubs = write_stubs()
            write_declarations()
            builder = Builder(flavour, int(jobs), self.say)
            built = builder.extension()
        except BuildFailed as failure:
            sys.exit(f"error: {failure}")
        target = self.get_ext_fullpath("ksrv._native._core")
        self.mkpath(str(Path(target).parent))
        self.copy_file(str(built), target)
        # build_py, which copies the package's files, ran before the stubs were written.
        for stub in stubs:
            copy = Path(self.build_lib) / stub
            self.mkpath(str(copy.parent))
            self.copy_file(str(stub), str(copy))
        if not self.inplace:
            for library in builder.carried():
                self.copy_file(str(library.resolve()), str(Path(target).with_name(library.name)))

    def say(self, line: str) -> None:
        """Print a line of progress; with -q, over the previous line. Output of the compiler is printed in full."""
        if self.verbose or "\n" in line:
            print(line, flush=True)
        elif sys.stdout.isatty():
            print(f"\r{line[:79]:79}\r", end="", flush=True)


check_system()
setup(ext_modules=[Extension("ksrv._native._core", [])], cmdclass={"build_ext": BuildNative})

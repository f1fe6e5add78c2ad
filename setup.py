"""Compiles every ``native/*.pyx`` into the extension module ``ksrv._native.<name>``.

The metadata lives in ``pyproject.toml``; this file knows only how the native core is built.

Environment:
    KSRV_ONLY: comma-separated module names; the others are left as they are.
    KSRV_SANITIZE: ``1`` builds with the address and undefined-behaviour sanitizers.
    KSRV_TRACE: ``1`` builds for gcov, which counts lines of generated and own C++ with or without
        the GIL and on any thread; for coverage only, never for timing.
"""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = Path("native")
SANITIZE = os.environ.get("KSRV_SANITIZE") == "1"
TRACE = os.environ.get("KSRV_TRACE") == "1"
ONLY = {name for name in os.environ.get("KSRV_ONLY", "").split(",") if name}

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}

# Modules that a free-threaded interpreter may import without turning the GIL on: their objects do not
# change once made, or change by atomics or behind a mutex of their own; their functions work on what
# they are given and on locals.
NEED_NO_GIL = {
    "arena",  # one pool behind mutexes, counts that are atomic; a Block's pointer is set once
    "body",  # headers are written by the call that makes them
    "codec_noise",  # its state is the thread's, the redirection's behind a mutex
    "datatype",  # constants
    "declared",  # what an object holds is set once
    "elements",  # locals; what is exported cannot be resized, and a second pass checks for room
    "image",  # locals; the pool's tasks behind a mutex
    "memory_budget",  # counts that are atomic
    "message",  # as body
    "numbers",  # locals
    "pixels",  # a Conversion is written by its initialiser alone
    "recogniser",  # as body
    "response",  # locals
}
# The others rely on the GIL, each for what is named here, and one that is not named has not been read:
#   door, exchange, lane, reply
#                   Python objects change hands between threads, and their owners are freed in turn
#   link            lists and a buffer of a Link, used by one thread after the other
#   ownership       it reads reference counts, which mean something else without the GIL
#   pymalloc        whether the store is in place; without the GIL there is no pymalloc to serve
#   queue           a ticket's answer and callbacks are plain attributes
#   records         the books of shared_blocks
#   shared_blocks   the books of lent and returned blocks, written when arrays die on any thread
#   tally           sums that are plain numbers
#   tensor          attributes that are plain


def compile_flags() -> list[str]:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-cast-function-type"]
    # Cython's own generated code trips these two; own headers are included as system headers never.
    flags += ["-Wno-missing-field-initializers", "-Wno-unused-parameter"]
    # a * b + c rounds twice on every processor, so that results do not depend on the machine.
    flags += ["-ffp-contract=off"]
    if SANITIZE:
        return [*flags, "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
    if TRACE:
        return [*flags, "-O0", "-g", "--coverage"]
    return [*flags, "-O3", "-g0", "-fvisibility=hidden"]


def link_flags() -> list[str]:
    if SANITIZE:
        return ["-fsanitize=address,undefined"]
    if TRACE:
        return ["--coverage"]
    return ["-Wl,-s"]


def extension(source: Path) -> Extension:
    # cythonize has one set of directives for all; this macro of the generated code is the same by module.
    without_gil = ("CYTHON_FREETHREADING_COMPATIBLE", str(int(source.stem in NEED_NO_GIL)))
    return Extension(
        f"ksrv._native.{source.stem}",
        [str(source)],
        language="c++",
        include_dirs=[str(SOURCES), numpy.get_include()],
        depends=[str(header) for header in sorted(SOURCES.glob("*.hpp"))],
        define_macros=[without_gil, ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=compile_flags(),
        extra_link_args=[*link_flags(), "-pthread"],
    )


setup(
    ext_modules=cythonize(
        [
            extension(source)
            for source in sorted(SOURCES.glob("*.pyx"))
            if not ONLY or source.stem in ONLY
        ],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        include_path=["."],
        annotate=False,
    )
)

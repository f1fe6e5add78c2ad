"""Compiles every ``ksrv/_native/*/*.pyx`` into an extension module beside it.

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

SOURCES, MODULES = Path("native"), Path("ksrv/_native")
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
    "buffer_pool",  # one pool behind mutexes, counts that are atomic; a Block's pointer is set once
    "infer_body",  # headers are written by the call that makes them
    "codec_stderr",  # its state is the thread's, the redirection's behind a mutex
    "datatype",  # constants
    "declared_outputs",  # what an object holds is set once
    "bytes_tensor",  # locals; what is exported cannot be resized, and a second pass checks for room
    "decode_pool",  # the tasks behind a mutex
    "image_header",  # locals
    "memory_budget",  # counts that are atomic
    "infer_request",  # as body
    "number_array",  # locals
    "convert_pixels",  # a Conversion is written by its initialiser alone
    "request_head",  # as body
    "infer_response",  # locals
}
# The others rely on the GIL, each for what is named here, and one that is not named has not been read:
#   server, exchange, model_endpoint, binary_response
#                   Python objects change hands between threads, and their owners are freed in turn
#   channel         lists and a buffer of a Link, used by one thread after the other
#   aliasing_check  it reads reference counts, which mean something else without the GIL
#   pymalloc        whether the store is in place; without the GIL there is no pymalloc to serve
#   request_queue   a ticket's answer and callbacks are plain attributes
#   tensor_descriptors   the books of shared_blocks
#   shared_blocks   the books of lent and returned blocks, written when arrays die on any thread
#   stats           sums that are plain numbers
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
        ".".join(source.with_suffix("").parts),
        [str(source)],
        language="c++",
        include_dirs=[str(SOURCES), numpy.get_include()],
        depends=[str(header) for header in sorted(SOURCES.rglob("*.hpp"))],
        define_macros=[without_gil, ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=compile_flags(),
        extra_link_args=[*link_flags(), "-pthread"],
    )


setup(
    ext_modules=cythonize(
        [
            extension(source)
            for source in sorted(MODULES.rglob("*.pyx"))
            if not ONLY or source.stem in ONLY
        ],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        include_path=["."],
        annotate=False,
    )
)

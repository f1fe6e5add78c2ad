"""Settings of all tests, such as hypothesis' profiles, and the order of long files."""

import contextlib
import functools
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import load_profile
from tests.support.missing_tools import skipped_without_tools
from tests.support.servers.forked_servers import forked_servers
from tests.support.servers.process_servers import handlers_in_processes

load_profile()

gc.disable()  # until the tests are collected: what they import stays, and is a million objects

# Hundreds of processes that tests start import the same modules: compiling them again for each
# takes a minute and more of a run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs of tests share the cores with other tests. torch starts a process that imports torch for each core, to
# compile in; the threads of OpenMP and OpenBLAS run idle while they wait for each other, or before they sleep.
# Before the first model torch tries the compiler with every kind of vector, and compiles headers beforehand.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Files of fifteen seconds and more, the longest first. Several processes share the suite a file at a time: a
# long file that begins last is waited for by all. Of files that need the same thing built, which takes the
# longest, one stands far in front of the others.
LONG_FILES = (
    "integration/docs/test_tutorials.py",
    "sanitizers/test_programs.py",
    "integration/engine/test_formats_served.py",
    "integration/cli/test_cli_init.py",
    "dialects/torchserve/handlers/test_installed_torchserve.py",
    "integration/streams/test_stream_leaks.py",
    "dialects/torchserve/handlers/test_handler_behaviours.py",
    "dialects/torchserve/handlers/test_golden_answers.py",
    "integration/http/test_bytes_held.py",
    "dialects/torchserve/handlers/test_packages.py",
    "integration/grpc/test_hostile_peers.py",
    "integration/workers/test_stops.py",
    "integration/workers/test_lifecycle.py",
    "integration/engine/test_loading_failures.py",
    "integration/workers/test_readiness.py",
    "integration/cli/test_commands_docs.py",
    "integration/bench/test_bench_command.py",
    "integration/workers/test_several_workers.py",
    "integration/access/test_route_guard.py",
    "integration/engine/test_hanging_handlers.py",
    "integration/native_server/test_lifecycle.py",
    "integration/native_server/test_protection.py",
    "integration/handler_processes/test_engine.py",
    "integration/handler_processes/test_server.py",
    "dialects/torchserve/archive/test_import.py",
    "unit/engine/processes/test_process_faults.py",
    "sanitizers/connections/test_turns.py",
    "unit/native/images/test_image_header.py",
    "unit/loaders/test_formats.py",
    "unit/images/test_decode_memory.py",
    "unit/images/test_foreign_files.py",
    "property/test_kept_memory.py",
)

missing = [name for name in LONG_FILES if not (Path(__file__).parent / name).exists()]
assert not missing, f"LONG_FILES in tests/conftest.py names files that are not there: {missing}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the executor of tests of behaviour, and the decoder that tests of images use."""
    parser.addoption(
        "--handlers-in-processes",
        action="store_true",
        help="run models that name no executor in processes",
    )
    parser.addoption(
        "--jpeg-decoder", default="auto", help="the decoder of the tests' process and servers"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have this process and the servers of all tests decode JPEGs by the decoder that the run asks for."""
    name = config.getoption("--jpeg-decoder")
    if name != "auto":
        from ksrv.images import jpeg

        jpeg.choose(name)
        os.environ["KSRV_JPEG_DECODER"] = name


@pytest.fixture(autouse=True, scope="session")
def servers_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the servers of all tests, and run their handlers in processes if the run asks for it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(forked_servers())
        if request.config.getoption("--handlers-in-processes"):
            stack.enter_context(handlers_in_processes())
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long files first, in the order within a file; skip tests of what processes change by their nature."""
    if config.getoption("--handlers-in-processes"):
        for item in items:
            for marker in item.iter_markers("differs_in_processes"):
                item.add_marker(pytest.mark.skip(reason=str(marker.args[0])))

    @functools.cache
    def place(path: Path) -> int:
        text = path.as_posix()
        return next((n for n, name in enumerate(LONG_FILES) if text.endswith(name)), 1000)

    items.sort(key=lambda item: place(item.path))


def pytest_collection_finish() -> None:
    """Look for garbage again, leaving out what the collected tests have imported."""
    gc.freeze()
    gc.enable()


def pytest_sessionstart() -> None:
    """End a run that was to test another build of the native core than the imported build."""
    import ksrv

    wanted, found = os.environ.get("TESTED_BUILD", ""), str(ksrv.__file__)
    if not found.startswith(wanted):
        pytest.exit(f"the tests import {found}, which is not below {wanted}", returncode=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures need a tool that is not installed."""
    with skipped_without_tools():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that calls a tool that is not installed."""
    with skipped_without_tools():
        return (yield)


@pytest.fixture(autouse=True, scope="module")
def imports_frozen() -> None:
    """Leave what is there before a file out of collections: some tests collect after every step."""
    gc.collect()
    gc.freeze()


SHARED = {
    "tests/dialects/torchserve/routes/test_wire.py": (
        "tests/dialects/torchserve/handlers/test_handler_behaviours.py"
    ),
}
"""Files whose tests run in one process with the tests of another file, because both use its server."""
SPLIT = {"tests/integration/docs/test_tutorials.py", "tests/integration/cli/test_cli_init.py"}
"""Files of minutes whose tests share nothing: each test runs in the next free process."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests by file, files that share an expensive server together, and the longest files by test."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if file in SPLIT else SHARED.get(file, file)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def logs_restored() -> Iterator[None]:
    """Put back what a command that ran in the tests' own process has set up as its log."""
    loggers = logging.getLogger(), logging.getLogger("ksrv")
    before = [(log, log.level, log.propagate, list(log.handlers)) for log in loggers]
    yield
    for log, level, propagate, handlers in before:
        log.setLevel(level)
        log.propagate = propagate
        log.handlers[:] = handlers

"""Servers of tests, forked from one process that has imported what `ksrv serve` imports.

Five sixths of the CPU time of a small server's start are imports, and the tests start hundreds of servers.
`pytest` runs this file once in each of its processes, as the program that forks. Servers with other
variables or another command start as users start them.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_FORKED = ([sys.executable, "-P", "-m", "ksrv", "serve"], [sys.executable, "-P", "-m", "gunicorn"])
"""How the commands begin that are run in a forked process."""
_REQUEST_BYTES = 1 << 17
_FIRST_FREE = 200
"""Descriptors that a server inherits are moved from here on first, so that no descriptor overwrites another."""
OF_THE_ECHO_SERVICE = "SERVER_TEST_"
"""How the variables of `echo_service` begin, which are read by nothing that the program has imported."""
_SET_PARENT_DEATH_SIGNAL = 1
_FOLDERS_OF_DIALECTS = (
    *("kserve_v1", "openai", "openvino", "torchserve.archive", "torchserve.routes"),
    *("triton.config", "triton.extensions"),
)
_READ_AT_THE_START = ("LD_", "PYTHON", "MALLOC_", "OMP_", "OPENBLAS_")
"""Prefixes of variables that act before the first line of a program, and so before the fork."""


class ForkedProcess:
    """A server that the program forked: what tests and `Server` use of a `subprocess.Popen`."""

    def __init__(self, pid: int, program: "ForkingProgram") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._program = program
        self._ended = os.pidfd_open(pid)
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended and return its exit status."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a server", timeout or 0)
            with self._reaping:  # several threads of a test may wait
                if self.returncode is None:
                    self.returncode = self._program.status_of(self.pid)
        return self.returncode

    def __del__(self) -> None:
        os.close(self._ended)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkingProgram:
    """The program that forks servers, while its context is open."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=self._variables,
                pass_fds=[theirs.fileno()],
            )

    def can_fork(self, command: Sequence[str], variables: Mapping[str, str]) -> bool:
        """Whether a server is a known command, and its variables may be given to it when it has started."""
        known = any(list(command[: len(begin)]) == begin for begin in _FORKED)
        return known and all(
            variables.get(name) == self._variables.get(name)
            for name in {*variables, *self._variables}
            if name.startswith(_READ_AT_THE_START)
        )

    def fork(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        descriptors: Sequence[int],
        output: int,
        *,
        ends_with: bool,
    ) -> ForkedProcess:
        """Start a server."""
        asked = {"command": list(command), "variables": dict(variables), "folder": os.getcwd(),
                 "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                 "descriptors": list(descriptors), "ends_with": ends_with}  # fmt: skip
        return ForkedProcess(self._ask(asked, [output, *descriptors]), self)

    def status_of(self, pid: int) -> int:
        return self._ask({"status_of": pid}, [])

    def _ask(self, asked: dict[str, Any], descriptors: Sequence[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], descriptors)
            return int(self._socket.recv(_REQUEST_BYTES))

    def close(self) -> None:
        """End the program; servers that it has forked and that run get SIGTERM."""
        self._socket.close()
        self._process.wait()


@contextlib.contextmanager
def forked_servers() -> Iterator[None]:
    """Have every plain `ksrv.testing.Server` and `GunicornServer` that starts meanwhile be forked."""
    from ksrv.server.launch import child_server

    spawn = child_server.spawn
    plain = child_server.variables_with({})
    program: list[ForkingProgram] = []

    def forked(
        command: list[str],
        variables: dict[str, str],
        descriptors: Sequence[int],
        *,
        ends_with_thread: bool,
        **popen: Any,
    ) -> Any:
        own = {
            name: value
            for name, value in variables.items()
            if not name.startswith(OF_THE_ECHO_SERVICE)
        }
        added = own != child_server.variables_with({})
        if not program and not added:
            program.append(ForkingProgram(plain))
        if added or set(popen) != {"stdout"} or not program[0].can_fork(command, variables):
            return spawn(
                command, variables, descriptors, ends_with_thread=ends_with_thread, **popen
            )
        output = popen["stdout"].fileno()
        return program[0].fork(command, variables, descriptors, output, ends_with=ends_with_thread)

    child_server.spawn = forked  # type: ignore[assignment]
    try:
        yield
    finally:
        child_server.spawn = spawn
        for one in program:
            one.close()


def _serve_requests(connection: socket.socket) -> list[str]:
    """Fork servers and report their exit statuses; return in each server, with its command.

    Raises:
        SystemExit: The tests have ended.
    """
    parent = os.getpid()
    while True:
        asked, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 16)
        if not asked:
            sys.exit()
        request = json.loads(asked)
        if "status_of" in request:
            _, status = os.waitpid(request["status_of"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
        if answer == 0 and "command" in request:
            connection.close()
            _become_server(request, descriptors, parent)
            command: list[str] = request["command"]
            return command
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(b"%d" % answer)


def _become_server(request: dict[str, Any], received: Sequence[int], parent: int) -> None:
    """Give a forked process what a started process has: a session, its folder, its descriptors and how many it may have."""
    if request["ends_with"]:
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(0)
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    import fcntl

    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for one in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, [1, *request["descriptors"]], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    sys.orig_argv = request["command"]
    sys.argv = request["command"][3:]  # where run_module puts the path of the module first


def main() -> None:
    """Fork servers until the tests end; in each server, run it."""
    import gc
    import runpy

    gc.disable()
    _import_what_servers_import()
    _shorten_sleeps_of_gunicorn()
    gc.freeze()
    gc.enable()
    _, _, _, module, *_ = _serve_requests(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        _end(ended.code)


def _import_what_servers_import() -> None:
    """Import what a server with one model has imported when it is ready."""
    import google.protobuf.message  # noqa: F401

    import ksrv.cli.main
    import ksrv.cli.serve
    import ksrv.dialects
    import ksrv.engine.processes.process
    import ksrv.server.workers.application  # noqa: F401

    for folder in _FOLDERS_OF_DIALECTS:
        package = importlib.import_module(f"ksrv.dialects.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _shorten_sleeps_of_gunicorn() -> None:
    """Let the master of a server sleep a tenth as long as gunicorn does: up to 0.1 s before it starts a worker, and 0.2 s at its end."""
    import gunicorn.arbiter

    quick = types.SimpleNamespace(**vars(time))
    quick.sleep = lambda seconds: time.sleep(seconds / 10)
    gunicorn.arbiter.time = quick


def _end(status: int) -> None:
    """End a server as Python does, up to where it would take apart what the program has imported.

    That copies most pages that the server shares with the program. Executed servers go through it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

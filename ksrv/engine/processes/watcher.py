"""One spawned process and the thread that watches it: its start, its output, its end.

The thread that starts the process stays until the process has ended. It must, because the kernel sends the parent-death
signal, which keeps a handler from outliving its worker, when the *thread* that started the process ends. The thread
reads the pipes and the events of the process. It sees the end by a pidfd, not by the socket, which children of the
process may keep open. Then it kills the rest of the process group, reaps the process, and reports how it ended.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from ksrv.engine.executor import ExecutorDied
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link, Packed
from ksrv.engine.processes.process_log import LineSplitter, ProcessLog

_PIPE_BYTES = 64 * 1024
"""The size of a pipe, unless the process has enlarged it."""
_EXIT_STATUS_WAIT_S = 2.0
"""How long other threads wait for the exit status after the process has closed its socket or was killed."""
_KILLS = (signal.SIGKILL, signal.SIGTERM)
"""Signals from outside: SIGKILL by the kernel when memory runs out, SIGTERM by an operator."""
_LAST_EVENTS = 1024
"""The most events that are read after the end; a socket holds fewer."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended.

    Attributes:
        status: The exit status, or the negative number of a signal.
        killed: Whether ksrv killed it.
    """

    status: int
    killed: bool

    def __str__(self) -> str:
        if self.status >= 0:
            return f"ended with exit status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        if self.killed:
            return f"was ended by ksrv with {name}"
        if -self.status == signal.SIGKILL:
            return f"was killed by {name}, as the kernel does when memory runs out"
        return f"was killed by {name}"


@dataclass(eq=False, kw_only=True)
class HandlerProcess:
    """A process that a separate thread starts, watches and reaps.

    Args:
        descriptors: Descriptors that the process inherits, with the same numbers.
        label: The name of the process in errors.
        log: Takes the output of the process.
        events: The link for events, which this closes when the process has ended.
        on_event: Called with each event, on the watching thread.
        on_end: Called once when the process has ended, on the watching thread.

    Attributes:
        pid: The process id, or 0 before the start.
        ending: How the process ended; None while it lives.
    """

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    descriptors: Sequence[int]
    label: str
    log: ProcessLog
    events: Link
    on_event: Callable[[Frame], None]
    on_end: Callable[[ProcessExit], None]
    pid: int = field(default=0, init=False)
    ending: ProcessExit | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _pidfd: int = field(default=-1, init=False)
    _killed: bool = field(default=False, init=False)
    _spawned: Future[None] = field(default_factory=Future, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: The process cannot be started.
            ValueError: A variable of its environment has a name or value that cannot be passed.
            RuntimeError: No thread can be started to watch it.
        """
        try:
            threading.Thread(target=self._watch, name="ksrv-handler-process", daemon=True).start()
        except RuntimeError:
            self.events.close()
            raise
        self._spawned.result()

    def kill(self) -> None:
        """Kill the process; does nothing if it has ended."""
        with self._lock:
            if self._pidfd >= 0:
                self._killed = True
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def kill_because(self, why: str) -> None:
        """Kill the process, log the reason, and wait a short time for its end."""
        if self.ending is None:
            self.log.log_note(logging.ERROR, f"the process is killed: {why}")
            self.kill()
            self.wait(_EXIT_STATUS_WAIT_S)

    def died(self, when: str = "while it ran the batch") -> ExecutorDied:
        """Return the error for a closed socket. Waits a short time until the watching thread knows the reason."""
        ending = self.wait(_EXIT_STATUS_WAIT_S)
        if ending is None:  # it closed the socket and lives on
            self.kill_because("it closed its socket")
            ending = self.wait(_EXIT_STATUS_WAIT_S)
        killed = ending is not None and not ending.killed and -ending.status in _KILLS
        text = f"{self.label} {ending or 'closed its socket'} {when}"
        return ExecutorDied(text, killed=killed)

    def violated(self, error: ChannelError) -> ExecutorDied:
        """Kill the process, which sent an invalid message, and return the error for its batches."""
        self.kill_because(str(error))
        return ExecutorDied(f"{self.label} sent an answer that cannot be read, and was ended")

    def tell(self, kind: int, packed: Packed) -> None:
        """Send a message on the link for events. It is dropped if the process does not read."""
        with self._lock:
            if self._pidfd >= 0:
                with contextlib.suppress(ChannelClosed):
                    self.events.send(kind, packed)

    def wait(self, timeout: float | None = None) -> ProcessExit | None:
        """Wait until the process has ended and `on_end` has returned.

        Returns:
            How the process ended; None after `timeout` seconds.
        """
        self._ended.wait(timeout)
        return self.ending

    def _watch(self) -> None:
        """Start, watch and reap the process. This is the watching thread."""
        try:
            process = self._spawn()
        except Exception as error:  # noqa: BLE001  raised by `start`, which waits
            self.events.close()
            self._ended.set()
            self._spawned.set_exception(error)
            return
        self.pid = process.pid
        self.log.started(process.pid)
        self._spawned.set_result(None)
        try:
            self._read(process)
        finally:
            self._finish(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env=self.environment,
            pass_fds=self.descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            with process:  # which waits for its end
                process.kill()
            raise
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        pipes = {
            process.stdout.fileno(): LineSplitter(self.log, logging.INFO),
            process.stderr.fileno(): LineSplitter(self.log, logging.WARNING),
        }
        poll = select.poll()
        for descriptor in (self._pidfd, self.events.fileno(), *pipes):
            poll.register(descriptor, select.POLLIN)
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
        ended, last_events = False, _LAST_EVENTS
        while not ended:
            for descriptor, _ in poll.poll():
                if descriptor == self._pidfd:
                    ended = True
                elif descriptor in pipes:
                    if not _read_pipe(descriptor, pipes[descriptor]):
                        poll.unregister(descriptor)
                elif not self._take_event():
                    poll.unregister(descriptor)
                    last_events = 0
        # Processes that left the group may continue to write, so only the data that has arrived by now is read.
        _end_group(process)
        for _ in range(last_events):
            if not self._take_event():
                break
        for descriptor, splitter in pipes.items():
            _read_pipe(descriptor, splitter)
            splitter.finish()
        self.log.flush()

    def _take_event(self) -> bool:
        """Handle one event that has arrived. Return False if none has, or the link is closed or invalid."""
        try:
            self.on_event(self.events.receive(deadline_ns=0))
        except (TimeoutError, ChannelClosed):
            return False
        except ChannelError as error:
            self.log.log_note(logging.ERROR, f"its events are no longer read: {error}")
            return False
        return True

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        _end_group(process)
        status = process.wait()
        with self._lock:
            os.close(self._pidfd)
            self._pidfd = -1
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        self.events.close()
        self.ending = ProcessExit(status, self._killed)
        try:
            self.on_end(self.ending)
        finally:
            self._ended.set()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a process. It was not reaped yet, so no other process or group can have its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_pipe(descriptor: int, splitter: LineSplitter) -> bool:
    """Read what is in a pipe; return False at its end."""
    try:
        data = os.read(descriptor, _PIPE_BYTES)
    except BlockingIOError:
        return True
    splitter.feed(data)
    return bool(data)

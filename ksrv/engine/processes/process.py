"""The executor whose handler runs in a separate process: starts, replaces and closes the process.

If the handler exits, crashes or hangs, only the batch that it runs is affected, or, if it has coroutines, the batches
that it runs. `runs` sends the batches; tensors are passed in shared memory. The process runs user code, so its answers
are checked like the bytes of a client.

The thread of the instance calls `start` and `run`. The thread of `HandlerProcess` (`watcher`) calls `_take_event` and
`_note_end`.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import replace

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv._native.process.batch_ring import WorkerRing
from ksrv.engine.executor import ExecutorAbsent
from ksrv.engine.processes import messages, uses_ring
from ksrv.engine.processes.backoff import Backoff
from ksrv.engine.processes.calls import ProcessCalls
from ksrv.engine.processes.interpreters import Interpreter, handler_environment, interpreter_for
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes.messages import ErrorMessage, LoadMessage, LogMessage, MessageType
from ksrv.engine.processes.process_log import ProcessLog
from ksrv.engine.processes.runs import ProcessRuns
from ksrv.engine.processes.watcher import HandlerProcess, ProcessExit
from ksrv.errors import (
    DeadlineExceeded,
    FilesChanged,
    HandlerFailed,
    KsrvError,
    NotReady,
    Overloaded,
    quote,
)
from ksrv.handlers.concurrent import Done
from ksrv.handlers.diagnostics.metrics import Emit, discard, own_labels
from ksrv.handlers.imports.loaded_files import changed_file
from ksrv.handlers.models import Submit, refuse_calls
from ksrv.limits import Limits
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs
from ksrv.statistics import MetricRecord

START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 5.0

_executors: weakref.WeakSet["ProcessExecutor"] = weakref.WeakSet()
_executors_lock = threading.Lock()


def send_log_level() -> None:
    """Send this process's current log level to all its handler processes."""
    with _executors_lock:
        executors = list(_executors)
    for executor in executors:
        executor.send_log_level()


def _log_level() -> int:
    return logging.getLogger("ksrv.handler").getEffectiveLevel()


@dataclass(eq=False)
class ProcessExecutor:
    """One instance of a model in a separate process.

    Args:
        threads: CPU threads of the instance; 0 leaves the libraries to themselves.
        start_timeout_s: How long loading may take.
        emit: Takes the values that the handler reports, on the thread that watches the process.
        limits: Bounds on requests, which the handler applies when it decodes images.
        submit: Submits the handler's calls to other models.
    """

    any_thread = True
    keeps_deadlines = True

    source: ModelSource
    _: KW_ONLY
    instance: int = 0
    threads: int = 0
    start_timeout_s: float = START_TIMEOUT_S
    emit: Emit = discard
    limits: Limits = field(default_factory=Limits)
    submit: Submit = refuse_calls

    def __post_init__(self) -> None:
        source = self.source
        # Handlers of a foreign format choose all labels of their metrics.
        ours = (source.config or ModelConfig()).runner == ModelConfig().runner
        self._own_labels = own_labels(source.name, source.version) if ours else ()
        self._label = f"the process of model {quote(source.name)}"
        self._log = ProcessLog(source.name, source.version, self.instance)
        self._backoff = Backoff()
        # Held while a batch uses the link, and while the process is replaced.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._callbacks: list[Callable[[str], None]] = []
        self._process: HandlerProcess | None = None
        self._link: Link | None = None
        self._batches: ProcessRuns | None = None
        self._ring: WorkerRing | None = None
        self._spec: ModelSpec | None = None
        self._interpreter: Interpreter | None = None
        with _executors_lock:
            _executors.add(self)

    def send_log_level(self) -> None:
        """Send the current level of the worker's log to the process."""
        process = self._process
        if process is not None:
            process.tell(MessageType.LEVEL, messages.dump(messages.LevelMessage(_log_level())))

    @property
    def alive(self) -> bool:
        """Whether the process has loaded the handler and lives."""
        process = self._process
        return self._batches is not None and process is not None and process.ending is None

    @property
    def pid(self) -> int:
        """The process id, or 0 if no process lives."""
        process = self._process
        return process.pid if process is not None and process.ending is None else 0

    @property
    def ring(self) -> WorkerRing | None:
        """The shared memory for batches of the living process; None if it has none, or has not loaded the handler."""
        return self._ring if self.alive else None

    def end_sequences(self, numbers: Sequence[int]) -> None:
        """Have the process drop the state of sequences; see `Executor.end_sequences`."""
        batches = self._batches
        if numbers and batches is not None and self.alive:
            batches.end_sequences(list(numbers))

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with the reason when the process ends; see `Executor.on_death`."""
        self._callbacks.append(callback)

    def start(self) -> ModelSpec:
        """Start the process and have it load the handler; see `Executor.start`.

        If the process has ended, this starts another process, after the pause of `Backoff`. While the process lives,
        this changes nothing.

        Returns:
            The model's description, completed by what the model file says.

        Raises:
            FilesChanged: The process is not replaced, because a file of the model has changed.
            KsrvError: The handler's own error, the process's end, or that loading took too long.
        """
        interpreter = self._interpreter
        if interpreter is None:  # without the lock: an environment may have to be unpacked first
            config = self.source.config or ModelConfig()
            interpreter = interpreter_for(config.python, self.source.folder)
        with self._lock:
            self._interpreter = interpreter
            if self.alive and self._spec is not None:
                return self._spec
            self._drop_process()
            if self._closing.wait(self._backoff.pause()):
                raise NotReady(f"{self._label} is being closed")
            source = self.source
            if self._spec is not None:
                source = self._loaded_before()
            self._backoff.started()
            try:
                link, process, ring = self._spawn(interpreter)
                self._link, self._process = link, process
                self._spec = self._load(link, process, source)
                if not ring.seal():  # so that the process cannot take the memory back
                    raise HandlerFailed(f"the memory for batches of {self._label} cannot be sealed")
                ring.close_fd()
                self._ring = ring if uses_ring(self._spec) else None
                self._batches = ring.batches = ProcessRuns(
                    link,
                    process,
                    ProcessCalls(link, self.submit),
                    self._lock,
                    has_coroutines=bool(self._spec.concurrency),
                    may_stream=self._spec.may_stream,
                )
            except BaseException:
                self._backoff.ended()
                self._drop_process()
                raise
            # `_note_end` runs no callbacks before `_batches` is set, so an earlier end is raised here.
            if process.ending is not None:
                raise process.died("as soon as it had loaded the model")
            return self._spec

    def _loaded_before(self) -> ModelSource:
        """Return the source for a process that replaces another: it must load what was loaded before.

        Raises:
            FilesChanged: A file that it would open has changed since the model was loaded.
        """
        source = replace(self.source, again=True)
        if file := changed_file(source):
            raise FilesChanged(
                f"the model {source.name} lost a handler process and cannot replace it, because its file {file} changed "
                f"since it was loaded; load the model again"
            )
        return source

    def _spawn(self, interpreter: Interpreter) -> tuple[Link, HandlerProcess, WorkerRing]:
        config = self.source.config or ModelConfig()
        try:
            # If the process does not read: "keep" keeps the messages, so that no thread of the worker waits; "drop"
            # drops them, because only log levels are sent there.
            link, link_end = Link.pair("keep")
            events, events_end = Link.pair("drop")
            ring = WorkerRing(link.fileno())
        except (OSError, MemoryError) as error:  # there may be descriptors and memory again later
            raise HandlerFailed(f"{self._label} cannot be started: {error}") from error
        link.shared = ring  # tensors of messages are in its large slots
        link.most_received = messages.most_bytes(self.limits)
        events.most_received = messages.EVENT_BYTES
        descriptors = [link_end.fileno(), events_end.fileno(), ring.fileno()]
        process = HandlerProcess(
            command=[*interpreter.program, *map(str, [*descriptors, os.getpid()])],
            folder=self.source.folder,
            environment=handler_environment(
                os.environ, config.env, self.threads, finds_ksrv=interpreter.is_servers
            ),
            descriptors=descriptors,
            label=self._label,
            log=self._log,
            events=events,
            on_event=self._take_event,
            on_end=lambda ending: self._note_end(link, ending),
        )
        try:
            process.start()
        except (OSError, ValueError, RuntimeError) as error:
            link.close()
            why = error.strerror if isinstance(error, OSError) else error
            raise HandlerFailed(f"{self._label} cannot be started: {why}") from error
        finally:
            link_end.close()
            events_end.close()
        return link, process, ring

    def _load(self, link: Link, process: HandlerProcess, source: ModelSource) -> ModelSpec:
        note = LoadMessage(
            source=source.to_json().decode(),
            instance=self.instance,
            threads=self.threads,
            level=_log_level(),
            limits=self.limits,
            protocol=messages.PROTOCOL,
        )
        deadline_ns = time.monotonic_ns() + int(self.start_timeout_s * 1e9)
        try:
            link.send(MessageType.LOAD, messages.dump(note))
            frame = link.receive(deadline_ns)
            if frame.kind == MessageType.LOADED:
                return messages.load(ModelSpec, frame)
            raise self._load_failure(frame)
        except TimeoutError as error:
            process.kill()
            raise HandlerFailed(
                f"{self._label} did not get ready within {self.start_timeout_s:g} s"
            ) from error
        except ChannelClosed as error:
            raise process.died("while it loaded the model") from error
        except ChannelError as error:
            raise process.violated(error) from error

    def lease(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` that the process can read without a copy.

        Without a process this is a block of the buffer pool, which `run` copies.

        Raises:
            Overloaded: No memory is left for the block.
        """
        link = self._link
        try:
            if link is None:
                return buffer_pool.lease(nbytes)
            return link.lease(nbytes)
        except MemoryError as error:
            raise Overloaded(str(error), "memory") from error

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        """Run one batch; see `Executor.run`.

        Args:
            batch: The assembled batch. Its `emit` is called with intermediate answers.
            deadline_ns: `time.monotonic_ns` at which the process is killed, or None.

        Returns:
            The outputs, as views of blocks that are not reused until the views are gone.

        Raises:
            ExecutorAbsent: The process had ended before.
            ExecutorDied: The process ended, or its answer was malformed.
            DeadlineExceeded: The deadline passed.
            KsrvError: The handler failed the whole batch.
        """
        if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
            raise DeadlineExceeded("the request's deadline passed before its batch ran")
        batches = self._living()
        with nullcontext() if batches.has_coroutines else self._lock:
            self._backoff.served()
            return batches.run(batch, deadline_ns)

    def begin(
        self, batch: ExecutorInputs, done: Done, deadline_ns: int | None
    ) -> Callable[[], None]:
        """Run a batch while others run; only for handlers with coroutines.

        Args:
            done: Called once with the answer, on the thread that receives the messages of the process.
            deadline_ns: `time.monotonic_ns` at which the batch is cancelled, or None.

        Returns:
            A function that cancels the batch.

        Raises:
            ExecutorAbsent: The process has ended.
            Overloaded: No memory is left for the message.
        """
        batches = self._living()
        self._backoff.served()
        return batches.begin(batch, done, deadline_ns)

    def close(self) -> None:
        """Let the handler clean up and end the process; a batch that still runs is given up."""
        self._closing.set()
        # A running batch holds the lock. Its process is killed after the timeout, which ends the batch.
        while not self._lock.acquire(timeout=CLOSE_TIMEOUT_S):
            process = self._process
            if process is not None:
                process.kill_because("it was still busy when the model was closed")
        try:
            link, batches, process = self._link, self._batches, self._process
            if link is not None and process is not None and process.ending is None:
                if batches is not None and not batches.wait_idle(CLOSE_TIMEOUT_S):
                    process.kill_because("it was still busy when the model was closed")
                try:
                    if batches is not None:
                        link.send(MessageType.CLOSE)
                    link.finish()
                except ChannelClosed:
                    process.kill()
                if process.wait(CLOSE_TIMEOUT_S) is None:
                    process.kill_because(f"it did not end within {CLOSE_TIMEOUT_S:g} s")
            self._drop_process()
        finally:
            self._lock.release()

    def _living(self) -> ProcessRuns:
        """Return the batches of the living process; raise `ExecutorAbsent` if no process lives."""
        batches, process = self._batches, self._process
        if batches is None or process is None:
            raise ExecutorAbsent(f"{self._label} is not running")
        if process.ending is not None:
            raise ExecutorAbsent(f"{self._label} {process.ending}")
        return batches

    def _drop_process(self) -> None:
        """End the process and its children, and free everything that belonged to it."""
        link, process, batches = self._link, self._process, self._batches
        self._link = self._process = self._batches = self._ring = None
        if process is not None:
            process.kill()
            process.wait()
        if batches is not None:
            batches.join()  # its thread receives from the socket that is closed below
        if link is not None:
            link.close()

    def _load_failure(self, frame: Frame) -> KsrvError:
        """Return the error of a failed load. It names a model's own interpreter, which may lack a package."""
        if frame.kind != MessageType.FAILED:
            raise ChannelError(f"a message of the kind {frame.kind} has no place here")
        failure = messages.to_error(messages.load(ErrorMessage, frame))
        interpreter = self._interpreter
        if interpreter is None or interpreter.is_servers or type(failure) is not HandlerFailed:
            return failure
        return HandlerFailed(f"{failure.message} (in the interpreter {interpreter.program[0]})")

    def _take_event(self, frame: Frame) -> None:
        if frame.kind == MessageType.LOG:
            self._log.log_record(messages.load(LogMessage, frame))
        elif frame.kind == MessageType.METRIC:
            record = messages.load(MetricRecord, frame)
            if record.kind == "counter" and record.value < 0:
                raise ChannelError(f"the counter {quote(record.name)} cannot fall")
            own = self._own_labels
            # The process cannot report for another model, because the worker writes these labels.
            labels = own + record.labels[len(own) :]
            self.emit(MetricRecord(record.name, record.kind, record.unit, record.value, labels))
        else:
            raise ChannelError(f"a message of the kind {frame.kind} is not an event")

    def _note_end(self, link: Link, ending: ProcessExit) -> None:
        """Wake a waiting `run`, count the end for the backoff, and run the callbacks. Called by the watching thread."""
        loaded = self._batches is not None
        if not self._closing.is_set():
            self._log.log_note(logging.ERROR, f"the process {ending}")
        link.shutdown()
        if loaded and not self._closing.is_set():
            ring = self._ring
            if ring is not None and ring.used:  # batches in the ring do not pass through `run`
                self._backoff.served()
            self._backoff.ended()
            for callback in self._callbacks:
                callback(f"{self._label} {ending}")

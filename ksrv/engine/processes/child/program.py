"""The program of a handler process: `python -m ksrv.engine.processes.child.program`, started by process.py.

`main` prepares the process, `serve` loads one handler and then runs batches (`runs`). The process ends when it receives
CLOSE, when the worker's end of the socket closes, or when the worker dies. Log records and metrics are sent as events
on a second socket; the output of `print` reaches the worker through pipes.
"""

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.process.batch_ring import ProcessRing
from ksrv._native.server.exchange import HeadFields
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.engine.processes import messages, uses_ring
from ksrv.engine.processes.child.calls import WorkerCalls
from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.child.runs import Answers, RunLoop
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Link, Packed, WhenFull
from ksrv.engine.processes.messages import LoadMessage, LogMessage, MessageType
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.handlers.runner import HandlerLoadError, Runner, load_unchanged, make_runner
from ksrv.images.decode_limits import set_process_limits
from ksrv.images.geometry import placements
from ksrv.model.config import ModelSource
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.observe.log_text import RecordFormatter
from ksrv.observe.tracing import stop
from ksrv.request import RequestPart
from ksrv.shadow import is_shadow
from ksrv.statistics import MetricRecord

log = logging.getLogger("ksrv.handler")

_PR_SET_PDEATHSIG = 1
_MESSAGE_CHARACTERS = 64 * 1024
_KEPT_BYTES = 1 << 30
"""How much freed memory malloc keeps: the next batch needs as much again, and nothing else runs in this process."""


class Events:
    """The second link to the worker. It carries log records and metrics there, and the log level from there."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def send(self, kind: MessageType, packed: Packed) -> None:
        """Send an event. It is dropped if the worker does not keep up, because a handler must not wait for its log."""
        with contextlib.suppress(ChannelClosed):
            self._link.send(kind, packed)

    def follow_level(self) -> None:
        """Start a thread that sets the log level whenever the worker sends one."""
        threading.Thread(target=self._follow_level, name="ksrv-log-level", daemon=True).start()

    def _follow_level(self) -> None:
        with contextlib.suppress(ChannelClosed):
            while True:
                frame = self._link.receive()
                if frame.kind != MessageType.LEVEL:
                    raise ChannelError(f"a message was {frame.kind}, not LEVEL")
                note = messages.load(messages.LevelMessage, frame)
                logging.getLogger().setLevel(note.level)
                log.debug("the process logs from %s on", logging.getLevelName(note.level))

    def metric(self, record: MetricRecord) -> None:
        """Send a value that the handler reported."""
        self.send(MessageType.METRIC, messages.dump(record))


class EventLogHandler(logging.Handler):
    """Sends log records to the worker, their tracebacks as text.

    Args:
        events: Sends them.
    """

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events
        self.setFormatter(RecordFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. A record that cannot be formatted is reported as `logging` does."""
        try:
            text = _utf8(self.format(record)[:_MESSAGE_CHARACTERS])
            ids = getattr(record, "request_ids", None)
            if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
                ids = []
            named = [_utf8(name) for name in ids]
            note = LogMessage(_utf8(record.name), int(record.levelno), text, named)
            self._events.send(MessageType.LOG, messages.dump(note))
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  a log record must not break the code that logs it
            self.handleError(record)


def _utf8(text: str) -> str:
    """Return a text that UTF-8 can express, as a plain `str`: the handler may use subclasses of str."""
    return text.encode("utf-8", "backslashreplace").decode()


def serve(link: Link, events: Events, ring: ProcessRing) -> int:
    """Load the handler and run batches until the channel ends.

    Args:
        link: The link for batches.

    Returns:
        The exit status.
    """
    inbox, answers = Inbox(link), Answers(link)
    calls = WorkerCalls(link, inbox)
    frame = inbox.next_kept()
    if frame.kind != MessageType.LOAD:
        raise ChannelError(f"the first message was {frame.kind}, not LOAD")
    note = messages.load(LoadMessage, frame)
    if note.protocol != messages.PROTOCOL:
        text = (
            f"the ksrv of the handler's process speaks version {messages.PROTOCOL} of the protocol between "
            f"processes, and the server version {note.protocol}; install the server's release there"
        )
        answers.fail(HandlerFailed(text))
        return 1
    root = logging.getLogger()
    root.setLevel(note.level)
    root.addHandler(EventLogHandler(events))
    events.follow_level()
    try:
        runner, spec = _load(note, link, events, calls)
        loaded = messages.dump(spec)
        if uses_ring(spec):
            _declare(ring, spec)
            calls.ring = ring
    except BaseException as error:  # sent to the worker
        log.exception("the model cannot be loaded")
        answers.fail(error if isinstance(error, KsrvError) else HandlerFailed(_load_text(error)))
        return 1
    link.send(MessageType.LOADED, loaded)
    try:
        loop = RunLoop(runner, answers, inbox, calls, bool(spec.concurrency))
        runner.serve(loop.serve)
    except ChannelClosed:
        log.debug("the worker closed the socket")
    finally:
        runner.close()
        stop()  # exports the remaining spans of traces
    return 0


def _load(
    note: LoadMessage, link: Link, events: Events, calls: WorkerCalls
) -> tuple[Runner, ModelSpec]:
    # alone: this process loads no other model.
    source = replace(ModelSource.from_json(note.source.encode()), alone=True)
    os.nice(19 if is_shadow(source) else 0)  # the threads that the model starts inherit it
    set_process_limits(note.limits)
    PROCESS.bound = bytes_in_flight(note.limits)
    link.most_sent = messages.most_bytes(note.limits)
    _enter(dict.fromkeys((str(source.folder), str(source.root))))
    runner = make_runner(source, instance=note.instance, threads=note.threads, emit=events.metric)
    runner.submit = calls
    runner.lease_answer = link.lease
    runner.on_device_lost = _leave_device
    spec = load_unchanged(runner, source)
    buffer_pool.trim_malloc()  # reading a model may take twice its size
    return runner, spec


def _declare(ring: ProcessRing, spec: ModelSpec) -> None:
    """Tell the ring the inputs, so that it can make arrays of the rows that the worker writes."""
    # The worker uses the ring only if all dimensions of a row are fixed, apart from one length of padded rows.
    length = next((name for entry in spec.inputs for name in entry.lengths if name), "")
    inputs = [
        (entry.name, entry.datatype, [size for size in entry.shape[1:] if isinstance(size, int)])
        for entry in spec.inputs
    ]
    outputs = [output.name for output in spec.outputs]
    ring.declare(inputs, partial(ring_requests, length, outputs, spec.inputs))


def ring_requests(
    length: str,
    outputs: Sequence[str],
    inputs: Sequence[TensorSpec],
    records: list[tuple[int, int, str, bytes, int | None, list[int], dict[int, memoryview]]],
) -> list[RequestPart]:
    """Return the `RequestPart` of each request of a batch in the ring. Such requests have no parameters.

    Args:
        length: The name of the length of padded rows; "" if rows are not padded.
        outputs: The names of the declared outputs.
        records: For each request: how many rows it has, their length without padding, the id, the HTTP head, the
            deadline, the indices in `outputs` of the requested outputs, and by the indices in `inputs` the heights and
            widths of encoded images.
    """
    requests = []
    row = 0
    for rows, row_length, name, head, deadline_ns, wanted, pictures in records:
        part = RequestPart(slice(row, row + rows), name, {}, dict(HeadFields(head)))
        part.deadline_ns = deadline_ns
        part.outputs = tuple(outputs[place] for place in wanted)
        if length:
            part.lengths = {length: row_length}
        part.images = {
            inputs[at].name: placements(inputs[at], sizes) for at, sizes in pictures.items()
        }
        requests.append(part)
        row += rows
    return requests


def _load_text(error: BaseException) -> str:
    """Return the text about a failed load. A HandlerLoadError already names the handler's error."""
    return str(error) if isinstance(error, HandlerLoadError) else f"{type(error).__name__}: {error}"


def _leave_device(name: str) -> None:
    """End the process, because no code in it can use the device any more. The worker runs its batch again elsewhere."""
    log.critical("the device %s works no more in this process, which ends", name)
    os._exit(1)  # without cleanup, because memory on a broken device cannot be freed


def _enter(folders: Iterable[str]) -> None:
    """Put the model's folders first into the import path of this process and of programs that it starts."""
    places = list(folders)
    sys.path[:0] = places
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([inherited] if inherited else [])])


def _die_with_parent(parent: int) -> bool:
    """Ask the kernel to end this process when the parent ends; return False if the parent has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def _link(descriptor: int, when_full: WhenFull) -> Link:
    os.set_inheritable(descriptor, False)
    return Link(socket.socket(fileno=descriptor), when_full=when_full)


def main(arguments: Sequence[str]) -> int:
    """Run the process.

    Args:
        arguments: The descriptors of the link for batches, of the link for events and of the ring, and the process id
            of the worker.
    """
    channel, event_channel, descriptor, parent = map(int, arguments)
    if not _die_with_parent(parent):
        return 1
    ring = ProcessRing(descriptor, channel)
    os.close(descriptor)
    faulthandler.enable()
    # no_mmap: large single allocations are kept too.
    buffer_pool.tune_malloc(kept_bytes=_KEPT_BYTES, no_mmap=True)
    sys.argv = ["ksrv-handler"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    link = _link(channel, "wait")
    link.shared = ring  # tensors of messages are in its large slots
    status = serve(link, Events(_link(event_channel, "drop")), ring)
    gc.freeze()  # skips the collection at the end of the interpreter, which takes a second with torch
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

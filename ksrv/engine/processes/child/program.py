"""The program of a handler process: `python -m ksrv.engine.processes.child.program`, started by process.py.

It loads one handler and runs its batches (`batches`). It ends when told, when the worker's end of the socket
closes, or with the worker. Everything it says comes home: log records as events, the output of
`print` through pipes.
"""

import argparse
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
from ksrv.engine.processes.child.batches import Answers, Batches
from ksrv.engine.processes.child.calls import WorkerCalls
from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Link, Packed, WhenFull
from ksrv.engine.processes.messages import LoadMessage, LogMessage, MessageType
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.handlers.runner import HandlerLoadError, Runner, make_runner
from ksrv.images.decode_limits import set_process_limits
from ksrv.model.config import ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.observe.log_text import RecordFormatter
from ksrv.observe.tracing import stop
from ksrv.request import BatchRequest
from ksrv.statistics import MetricRecord

log = logging.getLogger("ksrv.handler")

_PR_SET_PDEATHSIG = 1
_MESSAGE_CHARACTERS = 64 * 1024
_KEPT_BYTES = 1 << 30
"""Of memory that batches have freed. The next batch needs as much again, and no other work runs here."""


class Events:
    """The socket for what comes home outside of answers.

    Args:
        link: The link; nothing is received on it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def send(self, kind: MessageType, packed: Packed) -> None:
        """Send an event, or drop it when the worker does not keep up: a handler never waits."""
        with contextlib.suppress(ChannelClosed):
            self._link.send(kind, packed)

    def follow_level(self) -> None:
        """Log from the level on that the worker names, whenever it does."""
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
        """Send one record; one that cannot be written is reported as any handler of logging does it."""
        try:
            text = _utf8(self.format(record)[:_MESSAGE_CHARACTERS])
            ids = getattr(record, "request_ids", None)
            if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
                ids = []
            named = [_utf8(one) for one in ids]
            note = LogMessage(_utf8(record.name), int(record.levelno), text, named)
            self._events.send(MessageType.LOG, messages.dump(note))
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  a log record must not break the code that logs it
            self.handleError(record)


def _utf8(text: str) -> str:
    """Return a text that has a UTF-8 form, as a plain string: the handler may use subclasses of str."""
    return text.encode("utf-8", "backslashreplace").decode()


class Child:
    """The process's life, from LOAD to the end of the socket.

    Args:
        ring: The descriptor of the memory for batches without messages.
    """

    def __init__(self, link: Link, events: Events, ring: int) -> None:
        self._link = link
        self._events = events
        self._descriptor = ring
        self._ring: ProcessRing | None = None
        self._is_concurrent = False
        self._inbox = Inbox(link)
        self._answers = Answers(link)
        self._calls = WorkerCalls(link, self._inbox)

    def serve(self) -> int:
        """Load the handler and run batches until the channel ends."""
        frame = self._inbox.take()
        if frame.kind != MessageType.LOAD:
            raise ChannelError(f"the first message was {frame.kind}, not LOAD")
        note = messages.load(LoadMessage, frame)
        if note.protocol != messages.PROTOCOL:
            text = (
                f"the ksrv of the handler's process speaks version {messages.PROTOCOL} of the protocol between "
                f"processes, and the server version {note.protocol}; install the server's release there"
            )
            self._answers.fail(HandlerFailed(text))
            return 1
        root = logging.getLogger()
        root.setLevel(note.level)
        root.addHandler(EventLogHandler(self._events))
        self._events.follow_level()
        runner = self._load(note)
        if runner is None:
            return 1
        try:
            batches = Batches(
                runner,
                self._link,
                self._inbox,
                self._answers,
                self._calls,
                self._ring,
                self._is_concurrent,
            )
            runner.serve(batches.serve)
        except ChannelClosed:
            log.debug("the worker closed the socket")
        finally:
            runner.close()
            stop()
        return 0

    def _load(self, note: LoadMessage) -> Runner | None:
        source = replace(ModelSource.from_json(note.source.encode()), alone=True)
        set_process_limits(note.limits)
        PROCESS.bound = bytes_in_flight(note.limits)
        self._link.exported.most_bytes = messages.most_bytes(note.limits)
        self._link.exported.most_kept = messages.most_kept(note.limits)
        _enter(dict.fromkeys((str(source.folder), str(source.root))))
        try:
            runner = make_runner(
                source,
                instance=note.instance,
                threads=note.threads,
                emit=self._events.metric,
            )
            runner.submit = self._calls
            runner.lease_answer = self._link.exported.lease
            runner.on_device_lost = _leave_device
            spec = runner.load()
            buffer_pool.trim_malloc()  # reading a model may take twice its size
            payload = messages.dump(spec)
            self._is_concurrent = bool(spec.concurrency)
            self._ring = self._calls.ring = self._open_ring(spec) if uses_ring(spec) else None
        except BaseException as error:  # sent to the worker
            log.exception("the model cannot be loaded")
            failure = error if isinstance(error, KsrvError) else HandlerFailed(_load_text(error))
        else:
            self._link.send(MessageType.LOADED, payload)
            return runner
        self._answers.fail(failure)
        return None

    def _open_ring(self, spec: ModelSpec) -> ProcessRing:
        # The worker uses the ring for a model whose inputs have fixed dimensions, but for one length of padded rows.
        length = next((name for one in spec.inputs for name in one.lengths if name), "")
        inputs = [
            (one.name, one.datatype, [size for size in one.shape[1:] if isinstance(size, int)])
            for one in spec.inputs
        ]
        outputs = [one.name for one in spec.outputs]
        make_requests = partial(ring_requests, length, outputs)
        channel = self._link.fileno()
        try:
            return ProcessRing(self._descriptor, channel, inputs, make_requests)
        finally:
            os.close(self._descriptor)


def ring_requests(
    length: str,
    outputs: Sequence[str],
    records: list[tuple[int, int, str, bytes, int | None, list[int]]],
) -> list[BatchRequest]:
    """Return what a handler sees of the requests of a batch in the ring.

    Args:
        length: The name of the length of padded rows; "" where rows are not padded.
        outputs: The names of the declared outputs.
        records: The rows, the length of the rows without padding, the id, the HTTP head, the deadline and the places
            of the outputs asked for of each; such requests have no parameters.
    """
    requests = []
    row = 0
    for rows, row_length, name, head, deadline_ns, wanted in records:
        one = BatchRequest(slice(row, row + rows), name, {}, dict(HeadFields(head)))
        one.deadline_ns = deadline_ns
        one.outputs = tuple(outputs[place] for place in wanted)
        if length:
            one.lengths = {length: row_length}
        requests.append(one)
        row += rows
    return requests


def _load_text(error: BaseException) -> str:
    """Return the text about a failed load. A HandlerLoadError already names the handler's error."""
    return str(error) if isinstance(error, HandlerLoadError) else f"{type(error).__name__}: {error}"


def _leave_device(name: str) -> None:
    """End the process, whose batch the worker may give to the next: nothing here can use the device."""
    log.critical("the device %s works no more in this process, which ends", name)
    os._exit(1)  # without cleanup, because memory on a broken device cannot be freed


def _enter(folders: Iterable[str]) -> None:
    """Make the model's folders the first places to import from, here and in programs started here."""
    places = list(folders)
    sys.path[:0] = places
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([inherited] if inherited else [])])


def _die_with_parent(parent: int) -> bool:
    """Ask the kernel to end this process with its parent; False when that is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def _link(descriptor: int, when_full: WhenFull) -> Link:
    os.set_inheritable(descriptor, False)
    return Link(socket.socket(fileno=descriptor), when_full=when_full, borrows=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process.

    Args:
        arguments: The command line; `sys.argv` unless given.
    """
    parser = argparse.ArgumentParser(prog="ksrv-handler", description="Started by ksrv itself.")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--ring", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    if not _die_with_parent(options.parent):
        return 1
    os.set_inheritable(options.ring, False)
    faulthandler.enable()
    buffer_pool.tune_malloc(keep=_KEPT_BYTES, no_mmap=True)
    sys.argv = ["ksrv-handler"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    link, events = _link(options.channel, "wait"), Events(_link(options.events, "drop"))
    status = Child(link, events, options.ring).serve()
    gc.freeze()  # with torch, a last collection of what the imports have made takes a second
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Records sampled requests of a model and their answers, without making requests wait.

`ModelRecording.follow` decides whether a request is sampled, and copies its inputs. When the request ends, the thread
that ends it copies the answer and puts the record into a bounded queue. The thread "ksrv-record", which starts with the
first record, encodes the records and writes them to files. If the disk is slow or full, records are dropped and
counted.
"""

import logging
import os
import random
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ksrv.errors import Cancelled, HandlerFailed, KsrvError
from ksrv.model.config import Recording
from ksrv.model.spec import ModelSpec
from ksrv.records.files import RotatedFiles
from ksrv.records.lines import Failure, Record, RecordedTensor, recorded
from ksrv.records.reading import LONGEST_LINE
from ksrv.request import InferRequest, InferResponse, Parameters, RequestHandle, Tensor

log = logging.getLogger(__name__)

MOST_WAITING = 1024
"""The most records that wait to be written."""
MOST_WAITING_BYTES = 64 << 20
"""The most bytes of records that wait to be written."""
LARGEST_RECORD = 16 << 20
"""The most bytes of a record: its tensors, names, parameters and headers, the answer included."""
CLOSE_SECONDS = 2.0
"""How long the unload of a model waits for records that are not written yet."""
WARNING_SECONDS = 60.0
"""The pause between two log lines about a disk that cannot be written to."""

LENGTH_BYTES = 4
"""Bytes of the length that a record has before each BYTES element."""

WRITTEN, QUEUE_FULL, TOO_LARGE, DISK = "written", "queue_full", "too_large", "disk"
"""The outcomes of records, as labels of the metric."""
CREDENTIALS = re.compile(
    "auth|bearer|cookie|token|secret|pass|credential|key|cert|jwt|oidc|principal|signature|session"
)
"""Headers with such a word in their names are never recorded, because they may contain credentials."""


class ModelRecording:
    """The recording of one model version, in one worker.

    Args:
        rules: The section `record` of model.yaml.
        count: Adds a number of records to the count of an outcome.

    Raises:
        HandlerFailed: The folder cannot be created or written to.
    """

    def __init__(
        self, rules: Recording, spec: ModelSpec, count: Callable[[str, int], None]
    ) -> None:
        self._rules = rules
        self._count = count
        self._left_out = {name.lower() for name in rules.without}
        images = [] if rules.images else [entry for entry in spec.inputs if entry.image is not None]
        self._images = frozenset(entry.name for entry in images)
        below = Path(spec.name) / (spec.version or "0")
        folder = Path(rules.to) / below
        _check(folder, below)
        self._files = RotatedFiles(folder, rules.size, rules.count)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Record, int]] = deque()
        self._nbytes = 0  # of the waiting records, and of the record that is being written
        self._thread: threading.Thread | None = None
        self._closed = False
        self._warned_s = -WARNING_SECONDS
        # The metric has all labels from the start.
        for outcome in (WRITTEN, QUEUE_FULL, TOO_LARGE, DISK):
            count(outcome, 0)

    @property
    def share(self) -> float:
        """The share of the requests that are sampled, 0 to 1."""
        return self._rules.sample

    # ---- on the requests' threads -----------------------------------------------------------

    def follow(
        self, request: InferRequest, callback: Callable[[RequestHandle], None] | None
    ) -> Callable[[RequestHandle], None] | None:
        """Return the callback for the end of a request: it records the request first, if it is sampled.

        Args:
            callback: The request's callback, or None.
        """
        if request.explain or not (request.sampled or random.random() < self._rules.sample):
            return callback
        sampled = _Sampled(self, request)
        if sampled.room < 0:
            self.drop()
            return callback
        if request.stream is not None:
            request.on_chunk = sampled.take_chunk
        return partial(sampled.end, callback)

    def copied(
        self, tensors: Iterable[Tensor], room: int
    ) -> tuple[tuple[RecordedTensor, ...], int]:
        """Return copies of tensors, and the bytes that are left of `room`; negative if the tensors do not fit."""
        made = []
        for tensor in tensors:
            room -= sys.getsizeof(tensor.name)
            keeps_data = tensor.name not in self._images
            if keeps_data:
                lengths = LENGTH_BYTES * len(tensor.data) if tensor.datatype == "BYTES" else 0
                room -= tensor.nbytes + lengths
            if room < 0:
                return (), room
            left_out = RecordedTensor(tensor.name, tensor.datatype, tuple(tensor.shape))
            made.append(recorded(tensor) if keeps_data else left_out)
        return tuple(made), room

    def kept_headers(self, request: InferRequest) -> dict[str, str]:
        """Return the headers of a request that are recorded."""
        return {
            name.lower(): str(request.headers[name])
            for name in request.headers
            if name.lower() not in self._left_out and not CREDENTIALS.search(name.lower())
        }

    def put(self, record: Record, nbytes: int) -> None:
        """Queue a record for the writing thread, or drop it if too many records or bytes wait."""
        with self._changed:
            full = len(self._waiting) >= MOST_WAITING or self._nbytes + nbytes > MOST_WAITING_BYTES
            if not full and not self._closed:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="ksrv-record", daemon=True)
                    thread.start()
                    self._thread = thread
                self._waiting.append((record, nbytes))
                self._nbytes += nbytes
                self._changed.notify_all()
                return
        self._count(QUEUE_FULL, 1)

    def drop(self) -> None:
        """Count a record that grew too large."""
        self._count(TOO_LARGE, 1)

    # ---- the writer -------------------------------------------------------------------------

    def _run(self) -> None:
        """Write records until `close` was called and none waits."""
        while (found := self._next()) is not None:
            record, nbytes = found
            outcome = WRITTEN
            try:
                line = record.line()
                if len(line) > LONGEST_LINE:  # characters that JSON escapes take up to six bytes
                    outcome = TOO_LARGE
                else:
                    self._files.write(line)
            except OSError as error:
                outcome = DISK
                self._warn(error)
            except Exception:
                outcome = DISK
                log.exception("a record of the model %s cannot be written", record.model)
            with self._changed:
                self._nbytes -= nbytes
            self._count(outcome, 1)
        self._files.close()

    def _next(self) -> tuple[Record, int] | None:
        """Wait for a record. Return None after `close`, when all records are written."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            return self._waiting.popleft() if self._waiting else None

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_s < WARNING_SECONDS:
            return
        self._warned_s = now
        log.warning(
            "records are dropped: %s cannot be written to: %s",
            self._rules.to,
            error.strerror or error,
        )

    def close(self) -> None:
        """Accept no more records, and wait up to `CLOSE_SECONDS` until the queued records are written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)


class _Sampled:
    """Collects the record of one sampled request until the request has ended.

    The lock is needed because `take_chunk` and `end` may run on different threads.

    Attributes:
        room: The bytes that its record may still grow by; negative if the record is too large.
    """

    def __init__(self, recording: ModelRecording, request: InferRequest) -> None:
        self._recording = recording
        self._request = request
        self._began_s = time.time()
        self._began_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._chunks: list[tuple[RecordedTensor, ...]] = []
        # The handler may write into its inputs, and the client's shared memory may change.
        self._inputs, self.room = recording.copied(request.inputs, LARGEST_RECORD)

    def take_chunk(self, response: InferResponse) -> None:
        """Copy an intermediate answer."""
        with self._lock:
            chunk, self.room = self._recording.copied(response.outputs, self.room)
            self._chunks.append(chunk)
            if self.room < 0:
                self._chunks.clear()

    def end(self, callback: Callable[[RequestHandle], None] | None, handle: RequestHandle) -> None:
        """Record the request, then call its callback. The callback may change the answer, so it is called last."""
        try:
            self._record(handle)
        except Exception:  # the client gets its answer all the same
            log.exception("a request of the model %s cannot be recorded", self._request.model_name)
        finally:
            if callback is not None:
                callback(handle)

    def _record(self, handle: RequestHandle) -> None:
        outputs: tuple[RecordedTensor, ...] | None = None
        failure = None
        answer_parameters: Parameters = {}
        try:
            response = handle.wait()
        except Cancelled:
            return
        except KsrvError as error:
            failure = Failure(int(error.http_status), error.message)
            # The frames of the traceback refer to the request, which refers to the error: a cycle.
            error.__traceback__ = None
        else:
            answer_parameters = response.parameters
            with self._lock:
                outputs, self.room = self._recording.copied(response.outputs, self.room)
        request = self._request
        headers = self._recording.kept_headers(request)
        texts: list[object] = [request.id, *(output.name for output in request.outputs)]
        for mapping in (request.parameters, headers, answer_parameters):
            texts += [*mapping, *mapping.values()]
        if failure is not None:
            texts.append(failure.message)
        self.room -= sum(map(sys.getsizeof, texts))
        if self.room < 0:
            self._recording.drop()
            return
        target = request.target
        record = Record(
            time=self._began_s,
            id=request.id,
            model=request.model_name,
            version=request.model_version if target is None else target.spec.version,
            duration_ms=(time.monotonic_ns() - self._began_ns) / 1e6,
            inputs=self._inputs,
            outputs=outputs,
            failure=failure,
            parameters=dict(request.parameters),
            wanted={
                asked.name: {"classification": asked.classification} if asked.classification else {}
                for asked in request.outputs
            },
            headers=headers,
            answer_parameters=dict(answer_parameters),
            chunks=tuple(self._chunks),
            streamed=request.stream is not None,
        )
        self._recording.put(record, LARGEST_RECORD - self.room)


def _check(folder: Path, below: Path) -> None:
    """Create the folder of a version. Clients may see the errors, so they only name the path below `record.to`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise HandlerFailed(
            f"model.yaml: record.to: the folder {below} cannot be made there: {error.strerror or error}"
        ) from None
    if not writable:
        raise HandlerFailed(
            f"model.yaml: record.to: the server's user cannot write to the folder {below} there"
        )

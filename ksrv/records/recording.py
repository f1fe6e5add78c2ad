"""Records sampled requests of a model and their answers, without making requests wait.

`RequestTap.follow` decides whether a request is sampled, and copies its inputs. When the request ends, the thread that
ends it copies the answer and puts the record into a bounded queue. A thread, which starts with the first record, uses
the records: `ModelRecording` writes them to files, and `ksrv/shadow/` runs them on another version. If the use is
slower than the requests, records are dropped and counted.
"""

import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from ksrv.errors import Cancelled, HandlerFailed, KsrvError
from ksrv.model.config import Recording
from ksrv.model.spec import ModelSpec
from ksrv.records.files import RotatedFiles
from ksrv.records.lines import Failure, Record, RecordedTensor, recorded
from ksrv.records.reading import LONGEST_LINE
from ksrv.request import InferRequest, InferResponse, Parameters, RequestHandle, Tensor

log = logging.getLogger(__name__)

MOST_WAITING = 1024
"""The most records that wait for their use."""
MOST_WAITING_BYTES = 64 << 20
"""The most bytes of records that wait for their use."""
LARGEST_RECORD = 16 << 20
"""The most bytes of a record: its tensors, names, parameters and headers, the answer included."""
CLOSE_SECONDS = 2.0
"""How long the unload of a model waits for records that are not used yet."""

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


class RequestTap:
    """Samples the requests of one model version, in one worker.

    Subclasses say how a record is used (`job`).

    Args:
        share: The share of the requests that are sampled, 0 to 1.
        count: Adds a number of records to the count of an outcome.

    Attributes:
        name: The name of the thread that uses the records.
        outcomes: The outcomes of records that are not dropped, as labels of the metric; last the outcome of a failure.
        share: As given.
        count: As given.
        sampled: The share of the requests that the native server chooses (`InferRequest.sampled`), and the least
            nanoseconds between two of them. The share is larger than `share` if another tap takes more requests.
        evidence: Counts that a promotion needs, by their keys; see `ksrv/shadow/`.
    """

    name = "ksrv-record"
    outcomes: tuple[str, ...] = (WRITTEN, DISK)
    _left_out: Container[str] = ()
    _images: Container[str] = ()

    def __init__(self, share: float, count: Callable[[str, int], None]) -> None:
        self.share = share
        self.sampled: tuple[float, int] = (share, 0)
        self.evidence: dict[str, int] = {}
        self.count = count
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[tuple[Callable[[], str], int] | None] = SimpleQueue()
        self._nbytes = 0  # of the waiting records, and of the record that is being used
        self._thread: threading.Thread | None = None
        self._closed = False
        # The metric has all labels from the start.
        for outcome in (QUEUE_FULL, TOO_LARGE, *self.outcomes):
            count(outcome, 0)

    # ---- on the requests' threads -----------------------------------------------------------

    def follow(
        self, request: InferRequest, callback: Callable[[RequestHandle], None] | None
    ) -> Callable[[RequestHandle], None] | None:
        """Return the callback for the end of a request: it records the request first, if it is sampled.

        Args:
            callback: The request's callback, or None.
        """
        if request.explain or not self.samples(request):
            return callback
        sampled = _Sampled(self, request)
        if sampled.room < 0:
            self.count(TOO_LARGE, 1)
            return callback
        if request.stream is not None:
            request.on_chunk = sampled.take_chunk
        return partial(sampled.end, callback)

    def samples(self, request: InferRequest) -> bool:
        """Tell by chance whether a request is sampled."""
        return random.random() * (self.sampled[0] if request.sampled else 1.0) < self.share

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

    def job(self, record: Record, request: InferRequest) -> Callable[[], str]:
        """Return the function that uses a record on the tap's thread, and returns the outcome that is counted.

        Args:
            request: The request, whose inputs may have changed since they were copied. The function must not keep it,
                because its buffers are not counted.
        """
        raise NotImplementedError

    def put(self, job: Callable[[], str], nbytes: int) -> None:
        """Queue the use of a record, or drop the record if too many records or bytes wait."""
        with self._lock:
            fits = self._nbytes + nbytes <= MOST_WAITING_BYTES
            if fits and self._jobs.qsize() < MOST_WAITING and not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    self._thread.start()
                self._jobs.put((job, nbytes))
                self._nbytes += nbytes
                return
        self.count(QUEUE_FULL, 1)

    # ---- the thread that uses the records ----------------------------------------------------

    def _run(self) -> None:
        """Use records until `close` was called and none waits."""
        while (found := self._jobs.get()) is not None:
            job, nbytes = found
            outcome = self.outcomes[-1]
            try:
                outcome = job()
            except Exception:
                log.exception("the record of a request cannot be used")
            del job, found
            with self._lock:
                self._nbytes -= nbytes
            self.count(outcome, 1)

    def close(self) -> None:
        """Accept no more records, and wait up to `CLOSE_SECONDS` until the queued records are used."""
        with self._lock:
            self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)


class ModelRecording(RequestTap):
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
        super().__init__(rules.sample, count)
        self._to = rules.to
        self._left_out = {name.lower() for name in rules.without}
        images = [] if rules.images else [entry for entry in spec.inputs if entry.image is not None]
        self._images = frozenset(entry.name for entry in images)
        below = Path(spec.name) / (spec.version or "0")
        folder = Path(rules.to) / below
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError("the server's user cannot write to it")
        except OSError as error:
            # Clients may see this error, so it only names the path below `record.to`.
            raise HandlerFailed(
                f"model.yaml: record.to: the folder {below} cannot be made there: {error.strerror or error}"
            ) from None
        self._files = RotatedFiles(folder, rules.size, rules.count)
        self._warned_s = -WARNING_SECONDS

    def job(self, record: Record, request: InferRequest) -> Callable[[], str]:
        """Return the function that writes a record to a file."""
        return partial(self._write, record)

    def _write(self, record: Record) -> str:
        line = record.line()
        if len(line) > LONGEST_LINE:  # characters that JSON escapes take up to six bytes
            return TOO_LARGE
        try:
            self._files.write(line)
        except OSError as error:
            if time.monotonic() - self._warned_s > WARNING_SECONDS:
                self._warned_s = time.monotonic()
                log.warning("no record is written to %s: %s", self._to, error.strerror or error)
            return DISK
        return WRITTEN

    def _run(self) -> None:
        super()._run()
        self._files.close()


class _Sampled:
    """Collects the record of one sampled request until the request has ended.

    The lock is needed because `take_chunk` and `end` may run on different threads.

    Attributes:
        room: The bytes that its record may still grow by; negative if the record is too large.
    """

    def __init__(self, tap: RequestTap, request: InferRequest) -> None:
        self._tap = tap
        self._request = request
        self._began_s = time.time()
        self._began_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._chunks: list[tuple[RecordedTensor, ...]] = []
        # The handler may write into its inputs, and the client's shared memory may change.
        self._inputs, self.room = tap.copied(request.inputs, LARGEST_RECORD)

    def take_chunk(self, response: InferResponse) -> None:
        """Copy an intermediate answer."""
        with self._lock:
            chunk, self.room = self._tap.copied(response.outputs, self.room)
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
                outputs, self.room = self._tap.copied(response.outputs, self.room)
        request = self._request
        headers = self._tap.kept_headers(request)
        texts: list[object] = [request.id, *(output.name for output in request.outputs)]
        for mapping in (request.parameters, headers, answer_parameters):
            texts += [*mapping, *mapping.values()]
        if failure is not None:
            texts.append(failure.message)
        self.room -= sum(map(sys.getsizeof, texts))
        if self.room < 0:
            self._tap.count(TOO_LARGE, 1)
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
        self._tap.put(self._tap.job(record, request), LARGEST_RECORD - self.room)

"""Runs sampled requests on the version that `shadow` names, and compares its answers with the answers of clients.

`Shadowing` samples the requests of a version that serves. When a sampled request has its answer, the thread
"ksrv-shadow" sends a copy of it to the shadow version, compares both answers, counts, and forgets both. So a client
never waits for the shadow version and never gets an answer of it. The shadow version runs in a handler process of low
priority, whatever its `executor` is: a crash, a leak or a hang of it touches no worker.
"""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from ksrv._native.queue.request_queue import Queue
from ksrv.errors import (
    Cancelled,
    HandlerFailed,
    KsrvError,
    NotFound,
    NotReady,
    Overloaded,
    TooManyRequests,
)
from ksrv.model.config import ModelConfig, ModelSource, Shadow
from ksrv.model.spec import ModelSpec
from ksrv.records.lines import Record, RecordedTensor, recorded
from ksrv.records.recording import ModelRecording, RequestTap
from ksrv.request import InferRequest, RequestHandle, Tensor
from ksrv.shadow import is_shadow

AGREED, DIFFERED, FAILED = "agreed", "differed", "failed"
SKIPPED, BUSY, UNAVAILABLE = "skipped", "busy", "unavailable"
"""The outcomes of requests that were not dropped before, as labels of the metric; see docs/shadow.md."""
COMPARED = (AGREED, DIFFERED, FAILED)
EXAMPLE = "example"

RUN_NS = 5_000_000
"""The least time that counts as the run of a request: what the worker spends on it, with a reserve for its clients."""
IDLE_WAIT_S = 1.0
"""How long a request waits until no other request waits for either version."""
IDLE_POLL_S = 0.002
MOST_EXAMPLES = 10
"""The most differences that a worker describes in words."""
MOST_OUTPUTS = 100
"""The most outputs that are counted by name, because a handler may choose the names for each request."""


class Version(Protocol):
    """The parts of `ksrv.engine.model.ModelVersion` that are used here."""

    source: ModelSource
    config: ModelConfig
    spec: ModelSpec
    queue: Queue

    @property
    def ready(self) -> bool:
        """Whether the version serves."""

    def count(self, field: str, outcome: str, count: int = 1) -> None:
        """Add to a count of the version's statistics."""


def isolated(source: ModelSource) -> ModelSource:
    """Return a version to load. If it is a shadow version, it runs in one handler process, and nothing is recorded."""
    if not is_shadow(source) or source.config is None:
        return source
    config = replace(source.config, executor="process", instances=1, record=None)
    return replace(source, config=config)


def tap_of(
    model: Version,
    *,
    find: Callable[[str, str], Version],
    submit: Callable[[InferRequest], RequestHandle],
) -> RequestTap | None:
    """Return the tap for the requests of a version, which records or shadows them; None for neither.

    Args:
        find: Returns a version of a model; see `ModelRegistry.find`.
        submit: See `Engine.submit`.

    Raises:
        HandlerFailed: The model cannot be shadowed, or its records cannot be written.
    """
    rules, shadow = model.config.record, model.config.shadow
    recording = None
    if rules is not None:
        recording = ModelRecording(rules, model.spec, partial(model.count, "records"))
    if shadow is None or is_shadow(model.source):
        return recording
    if not model.source.version:
        raise HandlerFailed("model.yaml: shadow: needs folders of versions, such as 1/ and 2/")
    if model.config.sequences is not None:
        raise HandlerFailed("model.yaml: shadow: sequences have their state in one version only")
    return Shadowing(model, shadow, recording, find, submit) if shadow.share else recording


class Shadowing(RequestTap):
    """Samples the requests of a version, and runs them on the shadow version, too.

    Args:
        rules: The section `shadow` of model.yaml.
        recording: Records requests first, if not None.
    """

    name = "ksrv-shadow"
    outcomes = (AGREED, DIFFERED, SKIPPED, BUSY, UNAVAILABLE, FAILED)

    def __init__(
        self,
        model: Version,
        rules: Shadow,
        recording: RequestTap | None,
        find: Callable[[str, str], Version],
        submit: Callable[[InferRequest], RequestHandle],
    ) -> None:
        super().__init__(rules.share, partial(model.count, "shadow"))
        self._model, self._rules, self._recording = model, rules, recording
        self._find, self._submit = find, submit
        # From the choice of a request to the next choice: with the share 0.1, ten times a run, so that nine of them are
        # rest. The bound keeps the pause below 64 bits.
        self._runs = min(1 / rules.share, 1e9) if rules.share < 1 else 0.0
        self._pause_ns = int(RUN_NS * self._runs)
        self.sampled = (self.share, self._pause_ns)
        self._next_ns = 0
        self._names: set[str] = set()  # of the outputs that are counted
        self._digest = ""
        self._source: ModelSource | None = None  # the shadow version that the evidence is about
        if recording is not None:
            # Without a pause, because records need their share at any time.
            self.sampled = recording.sampled = (max(self.share, recording.share), 0)

    # ---- on the requests' threads -----------------------------------------------------------

    def follow(
        self, request: InferRequest, callback: Callable[[RequestHandle], None] | None
    ) -> Callable[[RequestHandle], None] | None:
        """See `RequestTap.follow`."""
        if self._recording is not None:
            callback = self._recording.follow(request, callback)
        return super().follow(request, callback)

    def samples(self, request: InferRequest) -> bool:
        """Tell by chance whether a request is sampled, if the pause since the last sampled request is over."""
        if request.stream is not None or not super().samples(request):
            return False
        now = time.monotonic_ns()
        if now < self._next_ns:
            return False
        self._next_ns = now + self._pause_ns
        return True

    def job(self, record: Record, request: InferRequest) -> Callable[[], str]:
        """Return the function that runs a request on the shadow version."""
        failed = record.failure is not None and record.failure.status >= 500
        if failed or any(asked.classification for asked in request.outputs):
            return lambda: SKIPPED
        copy = InferRequest(
            request.model_name,
            str(self._rules.version),
            request.id,
            outputs=request.outputs,
            parameters=request.parameters,
            headers=record.headers,
            dialect=request.dialect,
            facts=request.facts,
        )
        parameters = [tensor.parameters for tensor in request.inputs]
        return partial(self._run_copy, record, copy, parameters)

    # ---- on the thread ksrv-shadow ----------------------------------------------------------

    def _run_copy(self, record: Record, request: InferRequest, parameters: list[Any]) -> str:
        """Run a copy of a request on the shadow version, compare the answers, and return the outcome."""
        try:
            model = self._find(request.model_name, request.model_version)
            if not model.ready:
                return UNAVAILABLE
            if not self._idle(model.queue):
                return BUSY
            self._begin_evidence(model.source)
            began = time.monotonic_ns()
            result, texts = self._compare(record, request, parameters)
        except (NotFound, NotReady, Cancelled):  # it was unloaded, or its process is being replaced
            return UNAVAILABLE
        except (Overloaded, TooManyRequests):
            return BUSY
        self._pause_ns = int(max(RUN_NS, time.monotonic_ns() - began) * self._runs)
        self._note(result, "")
        for name, text in texts.items():
            if name and (name in self._names or len(self._names) < MOST_OUTPUTS):
                self._names.add(name)
                outcome = DIFFERED if text else AGREED
                self._model.count("outputs", f"{outcome} {name}")
                self._note(outcome, name)
        examples = sum(f"\n{EXAMPLE}\n" in key for key in self.evidence)
        if (text := next(filter(None, texts.values()), "")) and examples < MOST_EXAMPLES:
            self._note(EXAMPLE, f"{record.id}: {text}")
        return result

    def _idle(self, queue: Queue) -> bool:
        """Wait until no request waits for the shadow version or for the version that serves; not for long."""
        until = time.monotonic() + IDLE_WAIT_S
        while queue.waiting or self._model.queue.waiting:
            if self._closed or time.monotonic() > until:
                return False
            time.sleep(IDLE_POLL_S)
        return not self._closed

    def _compare(
        self, record: Record, request: InferRequest, parameters: list[Any]
    ) -> tuple[str, dict[str, str]]:
        """Run a request on the shadow version.

        Returns:
            The outcome, and by output how it differs; "" for an output that agrees. A failure has the output "".
        """
        from ksrv.shadow.difference import answer_of, differences

        request.inputs = [
            Tensor(made.name, made.datatype, made.shape, made.data, given)
            for made, given in zip(
                map(RecordedTensor.tensor, record.inputs), parameters, strict=True
            )
        ]
        wanted = record.failure and record.failure.status
        try:
            response = self._submit(request).wait()
        except (NotFound, NotReady, Cancelled, Overloaded, TooManyRequests):
            raise
        except KsrvError as error:
            if error.http_status == wanted:
                return AGREED, {}
            return FAILED, {"": f"it failed with {int(error.http_status)}: {error.message}"}
        if wanted:
            return DIFFERED, {"": f"it was answered; recorded is the error {wanted}"}
        got = answer_of([recorded(output) for output in response.outputs])
        texts = differences(answer_of(record.outputs or ()), got, self._rules.tolerance)
        return (DIFFERED if any(texts.values()) else AGREED), texts

    def _begin_evidence(self, shadow: ModelSource) -> None:
        """Begin the evidence anew if the shadow version was loaded again."""
        if shadow is not self._source:
            self._source, self._digest = shadow, digest_of(self._model.source, shadow)
            self.evidence = {}

    def _note(self, outcome: str, subject: str) -> None:
        key = "\n".join((self._digest, outcome, subject))
        self.evidence[key] = self.evidence.get(key, 0) + 1

    def close(self) -> None:
        """See `RequestTap.close`; requests that wait are dropped."""
        super().close()
        if self._recording is not None:
            self._recording.close()


def digest_of(*sources: ModelSource) -> str:
    """Return a text that is the same as long as the files of versions are the same."""
    marks = [source.loaded and source.loaded.marks for source in sources]
    return hashlib.blake2b(msgspec.json.encode(marks), digest_size=8).hexdigest()

"""The warm-up of a new instance, at every batch size that will be used, before it serves."""

import logging
import time
from pathlib import Path

from ksrv.engine.instances import warmup_requests
from ksrv.engine.instances.instance import Instance
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.validation import RequestValidator
from ksrv.errors import (
    HandlerFailed,
    HandlerTypeError,
    KsrvError,
    ModelFailed,
    PromiseBroken,
    StreamNeeded,
)
from ksrv.request import InferRequest
from ksrv.source import ModelConfig
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")


class WarmUp:
    """Runs the requests of `warmup_requests` on an instance.

    Args:
        folder: The version's folder, which holds the samples.
        timeout_ns: How long a batch may take; 0 for any time.

    Attributes:
        error: Why zeros fail, where the model serves nevertheless; else "".
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: ModelConfig,
        folder: Path,
        timeout_ns: int,
        validator: RequestValidator,
    ) -> None:
        self.error = ""
        self._spec = spec
        self._wanted = config.warmup
        self._folder = folder
        self._timeout_ns = timeout_ns
        self._validator = validator

    def __call__(self, instance: Instance) -> None:
        """Warm an instance up.

        Raises:
            KsrvError: The model cannot serve.
        """
        spec = self._spec
        wanted = self._wanted
        if isinstance(wanted, bool):
            if wanted and not spec.calls_models:
                self._run_zeros(instance)
            return
        for name in wanted:
            requests = warmup_requests.samples(spec, self._folder / name)
            try:
                for request in requests:
                    self._run_sizes(instance, request)
            except KsrvError as error:
                raise HandlerFailed(
                    f"the warm-up sample {Path(name).name} of the model {spec.name} fails: "
                    f"{error.message}"
                ) from error

    def _run_zeros(self, instance: Instance) -> None:
        request = warmup_requests.generated(self._spec)
        if request is None:
            return
        try:
            self._run_sizes(instance, request)
        except KsrvError as error:
            if request.has_called:
                return  # whatever it is, it came of a call that was refused
            if isinstance(error, ModelFailed):
                raise
            if isinstance(error, PromiseBroken):
                raise ModelFailed(f"the warm-up with zeros: {error.message}") from error
            if isinstance(error, HandlerTypeError):
                raise ModelFailed(
                    f"the warm-up with zeros: {error.message}; if the handler cannot take zeros, name a sample under "
                    f"warmup:, or set warmup: false"
                ) from error
            self._check_layout(instance, request)
            self.error = f"the warm-up failed: {error.message}"
            log.warning(
                "the model %s was not warmed up: zeros fail with: %s",
                self._spec.name,
                error.message,
            )

    def _run_sizes(self, instance: Instance, request: InferRequest) -> None:
        """Run a request on an instance, at every batch size that will be used."""
        rows, batch_key = self._validator.validate(request)
        sizes = warmup_requests.sizes(self._spec)
        for count in sorted({max(1, size // max(rows, 1)) for size in sizes}):
            batch = instance.new_batch()
            batch.add([QueuedRequest(request, rows, batch_key) for _ in range(count)])
            errors = [error for _, error in batch.failed]
            if not errors:
                try:
                    errors = list(
                        instance.execute(batch.inputs(), self._deadline()).failures.values()
                    )
                except StreamNeeded:  # the handler has run, and its clients stream
                    continue
            for error in errors:
                if not isinstance(error, StreamNeeded):
                    raise error

    def _check_layout(self, instance: Instance, request: InferRequest) -> None:
        """Raise where the zeros that failed are taken in the other order of channels."""
        spec = self._spec
        turned = warmup_requests.turned(spec, request)
        if turned is None or not instance.available:
            return
        try:
            failed = instance.execute(turned, self._deadline()).failures
        except KsrvError:
            return
        if not failed:
            raise ModelFailed(f"the warm-up with zeros: {warmup_requests.layout_sentence(spec)}")

    def _deadline(self) -> int | None:
        return time.monotonic_ns() + self._timeout_ns if self._timeout_ns else None

"""The warm-up of a new instance, at every batch size that will be used, before it serves."""

import logging
import time
from pathlib import Path
from typing import Protocol

from ksrv.engine.instances import warmup_requests
from ksrv.engine.instances.instance import Instance
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.validation import RequestValidator
from ksrv.errors import HandlerFailed, KsrvError, ModelFailed, PromiseBroken
from ksrv.request import InferRequest
from ksrv.source import ModelConfig, ModelSource
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")


class WarmedModel(Protocol):
    """What the warm-up asks of a model version, and tells it."""

    spec: ModelSpec
    config: ModelConfig
    source: ModelSource
    timeout_ns: int
    warm_up_error: str


class WarmUp:
    """Runs the requests of `warmup_requests` on an instance.

    Args:
        model: The version; its `warm_up_error` is set where zeros fail and it serves nevertheless.
        validator: The version's.
    """

    def __init__(self, model: WarmedModel, validator: RequestValidator) -> None:
        self._model = model
        self._validator = validator

    def __call__(self, instance: Instance) -> None:
        """Warm an instance up.

        Args:
            instance: One that is loaded.

        Raises:
            KsrvError: The model cannot serve.
        """
        model = self._model
        wanted = model.config.warmup
        if isinstance(wanted, bool):
            if wanted and not model.spec.calls_models:
                self._run_zeros(instance)
            return
        for name in wanted:
            request = warmup_requests.sample(model.spec, model.source.folder / name)
            try:
                self._run_sizes(instance, request)
            except KsrvError as error:
                raise HandlerFailed(
                    f"the warm-up sample {Path(name).name} of the model {model.spec.name} fails: "
                    f"{error.message}"
                ) from error

    def _run_zeros(self, instance: Instance) -> None:
        model = self._model
        request = warmup_requests.generated(model.spec)
        if request is None:
            return
        try:
            self._run_sizes(instance, request)
        except ModelFailed:
            raise
        except PromiseBroken as error:
            raise ModelFailed(f"the warm-up with zeros: {error.message}") from error
        except KsrvError as error:
            self._check_layout(instance, request)
            model.warm_up_error = f"the warm-up failed: {error.message}"
            log.warning(
                "the model %s was not warmed up: zeros fail with: %s",
                model.spec.name,
                error.message,
            )

    def _run_sizes(self, instance: Instance, request: InferRequest) -> None:
        """Run a request on an instance, at every batch size that will be used."""
        rows, batch_key = self._validator.validate(request)
        sizes = warmup_requests.sizes(self._model.spec)
        for count in sorted({max(1, size // max(rows, 1)) for size in sizes}):
            batch = instance.new_batch()
            batch.add([QueuedRequest(request, rows, batch_key) for _ in range(count)])
            errors = [error for _, error in batch.failed]
            if not errors:
                answers = instance.execute(batch.inputs(), self._deadline())
                errors = list(answers.failures.values())
            if errors:
                raise errors[0]

    def _check_layout(self, instance: Instance, request: InferRequest) -> None:
        """Raise where the zeros that failed are taken in the other order of channels."""
        spec = self._model.spec
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
        timeout_ns = self._model.timeout_ns
        return time.monotonic_ns() + timeout_ns if timeout_ns else None

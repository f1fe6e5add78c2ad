"""Warms a new instance up before it serves: runs requests on it at every batch size that will be used.

`warmup_requests` says which requests these are, and which failures fail the load. The warm-up also checks that padding
does not change the answers of a model whose `pad` is `exact`.
"""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ksrv.engine.batches.padding import cut_back
from ksrv.engine.executor import ExecutorDied
from ksrv.engine.instances import warmup_requests
from ksrv.engine.instances.instance import Instance
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.validation import RequestValidator
from ksrv.errors import (
    DeadlineExceeded,
    FileFailed,
    HandlerFailed,
    KsrvError,
    ModelFailed,
    ProgramError,
    PromiseBroken,
    StreamNeeded,
)
from ksrv.model.config import ModelConfig
from ksrv.model.datatypes import widened
from ksrv.model.spec import ModelSpec
from ksrv.request import InferRequest, Tensor

log = logging.getLogger("ksrv.engine")

TOLERANCE = 1e-3
"""The largest difference between answers to a row that runs in two ways, relative and absolute."""


@dataclass(eq=False)
class WarmUp:
    """Runs the requests of `warmup_requests` on an instance.

    Args:
        folder: The version's folder, which holds the samples.
        timeout_ns: How long a batch may take; 0 for any time.

    Attributes:
        error: The error with zeros of a model that serves nevertheless, or why the padding could not be checked; else
            "".
    """

    spec: ModelSpec
    config: ModelConfig
    folder: Path
    timeout_ns: int
    validator: RequestValidator
    error: str = field(default="", init=False)

    def __call__(self, instance: Instance) -> None:
        """Warm an instance up.

        Raises:
            KsrvError: The model cannot serve.
        """
        spec = self.spec
        wanted = self.config.warmup
        if isinstance(wanted, bool):
            if wanted and not spec.calls_models:
                self._run_zeros(instance)
                if (ones := warmup_requests.unpadded_ones(spec)) is not None:
                    self._check_padding(instance, ones)
            return
        for name in wanted:
            requests = warmup_requests.samples(spec, self.folder / name)
            try:
                for request in requests:
                    self._run_sizes(instance, request)
                    self._check_padding(instance, request)
            except KsrvError as error:
                raise HandlerFailed(
                    f"the warm-up sample {Path(name).name} of the model {spec.name} fails: "
                    f"{error.message}"
                ) from error

    def _run_zeros(self, instance: Instance) -> None:
        """Run zeros at every batch size.

        A failure does not always fail the load, because a handler may refuse zeros and still serve its clients. The
        load fails if the model takes small batches but not large batches (or the reverse), if the order of an image's
        channels is wrong, or if the error cannot depend on the values (`_raise_if_broken`).
        """
        request = warmup_requests.generated(self.spec)
        if request is None:
            return
        sizes = warmup_requests.sizes(self.spec)
        error, passed = None, 0
        for size in sizes:
            error = self._failure(instance, request, size)
            if error is not None:
                break
            passed = size
        # The engine refuses calls to other models here (`calls_nobody`) and sets `has_called`. This is not a fault.
        if request.has_called and not self.spec.concurrency:
            log.info(
                "the model %s calls other models; name them under calls: in its model.yaml, so that the calls of "
                "several requests are joined",
                self.spec.name,
            )
        if error is None or request.has_called:
            return
        name = f"the warm-up with zeros: {error.message}"
        if isinstance(error, ModelFailed):
            raise error
        if passed and not isinstance(error, (DeadlineExceeded, ExecutorDied)):
            raise ModelFailed(
                f"{name}. It takes up to {passed} rows and not {size}: {_lower(passed)}"
            ) from error
        _raise_if_broken(name, error)
        if not passed:
            self._check_layout(instance, request)
            most = sizes[-1]
            if most > size and instance.available and not self._failure(instance, request, most):
                raise ModelFailed(f"{name}. It fails with {size} rows, and not with {most}")
        self.error = f"the warm-up failed: {error.message}"
        log.warning(
            "the model %s was not warmed up: zeros fail with: %s", self.spec.name, error.message
        )

    def _run_sizes(self, instance: Instance, request: InferRequest) -> None:
        """Run a request on an instance, at every batch size that will be used."""
        rows = max(1, self.validator.validate(request).rows)
        sizes = warmup_requests.sizes(self.spec)
        for count in sorted({max(1, size // rows) for size in sizes}):
            error = self._failure(instance, request, count)
            if error is not None:
                raise error

    def _failure(self, instance: Instance, request: InferRequest, count: int) -> KsrvError | None:
        """Run a batch of `count` copies of a request, and return the first error, or None."""
        rows, batch_key = self.validator.validate(request)
        batch = instance.new_batch()
        failed = batch.add([QueuedRequest(request, rows, batch_key) for _ in range(count)])
        errors = [error for _, error in failed]
        if not errors:
            try:
                errors = list(instance.execute(batch.inputs(), self._deadline()).failures.values())
            except KsrvError as error:
                errors = [error]
        # StreamNeeded is not a failure: the handler ran, and answers only clients that stream.
        return next((error for error in errors if not isinstance(error, StreamNeeded)), None)

    def _check_padding(self, instance: Instance, request: InferRequest) -> None:
        """Raise if the answers of a model whose `pad` says `exact` depend on the padding."""
        self.validator.validate(request)  # sets `request.lengths`
        answers = []
        for times in (1, 2):
            inputs = warmup_requests.padded(self.spec, request, times)
            if inputs is None:
                return
            try:
                outputs = instance.execute(inputs, self._deadline())
                for failure in outputs.failures.values():
                    raise failure
            except KsrvError as error:
                if request.has_called or isinstance(error, StreamNeeded):
                    return
                _raise_if_broken(f"pad: {{exact: true}} was checked: {error.message}", error)
                self.error = f"pad: {{exact: true}} could not be checked: {error.message}"
                log.warning("the model %s: %s", self.spec.name, self.error)
                return
            # Copied, because the handler may overwrite the memory of its outputs in the next run.
            answers.append([_copied(tensor) for tensor in outputs.tensors])
        for alone, padded in zip(*answers, strict=True):
            padded = cut_back(padded, self.spec.output(padded.name), request.lengths)
            if not are_alike(alone, padded):
                raise ModelFailed(
                    f"the model {self.spec.name} says pad: {{exact: true}}, and its output {alone.name!r} depends on the "
                    f"padding; name an input as mask, or leave pad out"
                )

    def _check_layout(self, instance: Instance, request: InferRequest) -> None:
        """Raise if the zeros that failed pass with the channels of the images in the other order."""
        spec = self.spec
        swapped = warmup_requests.swapped_layout(spec, request)
        if swapped is None or not instance.available:
            return
        try:
            failed = instance.execute(swapped, self._deadline()).failures
        except KsrvError:
            return
        if not failed:
            raise ModelFailed(f"the warm-up with zeros: {warmup_requests.layout_sentence(spec)}")

    def _deadline(self) -> int | None:
        return time.monotonic_ns() + self.timeout_ns if self.timeout_ns else None


def _raise_if_broken(text: str, error: KsrvError) -> None:
    """Raise if an error shows that the model cannot serve, whatever values a client sends.

    Args:
        text: The message: what was run, and its error.

    Raises:
        ModelFailed: The error is of such a class.
    """
    if isinstance(error, PromiseBroken):
        raise ModelFailed(text) from error
    if isinstance(error, (FileFailed, ProgramError)):
        raise ModelFailed(
            f"{text}; if the model cannot take such values, name a sample under warmup:, or set warmup: false"
        ) from error


def _copied(tensor: Tensor) -> Tensor:
    data = tensor.data if isinstance(tensor.data, list) else np.array(tensor.data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data)


def are_alike(first: Tensor, second: Tensor) -> bool:
    """Tell whether two outputs are equal, except for rounding."""
    if first.shape != second.shape or first.datatype != second.datatype:
        return False
    if isinstance(first.data, list) or isinstance(second.data, list):
        return first.data == second.data
    mine, other = widened(first.data, first.datatype), widened(second.data, second.datatype)
    return bool(np.allclose(mine, other, TOLERANCE, TOLERANCE, equal_nan=True))


def _lower(rows: int) -> str:
    """Return the advice for a model that takes at most `rows` rows in a batch."""
    if rows == 1:
        return "leave batching: out, or export the model so that it takes several rows"
    return f"lower max_batch_size to {rows}"

"""`ts.service` and `ts.model_loader`: loading and calling a handler without a server.

For users' scripts and tests that call a handler in the same process.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ksrv.dialects.torchserve.api.answers import (
    OUT_OF_RESOURCES,
    PREDICTION_FAILED,
    AnswerError,
    checked_items,
)
from ksrv.dialects.torchserve.api.context import Context, RequestProcessor
from ksrv.dialects.torchserve.api.entry import Entry, find_entry
from ksrv.dialects.torchserve.api.envelopes import ENVELOPES
from ksrv.dialects.torchserve.api.errors import PredictionException
from ksrv.dialects.torchserve.api.frames import create_predict_response
from ksrv.dialects.torchserve.api.metrics import Metrics
from ksrv.dialects.torchserve.api.model_config import get_yaml_config
from ksrv.dialects.torchserve.shims import ts
from ksrv.handlers.diagnostics.metrics import discard

logger = logging.getLogger("ksrv.dialects.torchserve")

PREDICTION_METRIC = "PredictionTime"


class Service:
    """A loaded handler and its context.

    Args:
        entry_point: Called for each batch.
    """

    def __init__(self, context: Context, entry_point: Entry) -> None:
        self._context = context
        self._entry_point = entry_point

    @property
    def context(self) -> Context:
        return self._context

    def set_cl_socket(self, cl_socket: Any) -> None:
        """Set the object that sends intermediate answers; see `ksrv.dialects.torchserve.api.streaming`."""
        self._context.cl_socket = cl_socket

    def predict(self, batch: Sequence[dict[str, Any]]) -> bytearray:
        """Run one batch.

        Args:
            batch: For each request its `requestId`, `parameters`: a list of {name, contentType, value}
                dicts, and `headers`: a list of {name, value} dicts.

        Returns:
            The answers as a frame; see `ksrv.dialects.torchserve.api.frames`.
        """
        context = self._context
        rows = [
            {_text(part["name"]): part["value"] for part in request["parameters"]}
            for request in batch
        ]
        ids = {index: _text(request["requestId"]) for index, request in enumerate(batch)}
        context.request_ids = ids
        context.request_processor = [RequestProcessor(_headers(request)) for request in batch]
        start = time.time()
        try:
            items = checked_items(self._entry_point(rows, context), len(rows))
            # One failure fails all: a frame has one status.
            for processor in context.request_processor:
                if processor.failure is not None:
                    raise processor.failure
        except Exception as error:
            logger.error("the handler failed", exc_info=error)
            code, message = outcome(error)
            return create_predict_response(None, ids, message, code)
        if context.metrics is not None:
            emit_metrics(context.metrics, start)
        return create_predict_response(items, ids, "Prediction success", 200, context)


def outcome(error: Exception) -> tuple[int, str]:
    """Return the status and the message of a batch whose handler raised, or returned a wrong answer."""
    if isinstance(error, PredictionException):
        return error.error_code, error.message
    if isinstance(error, AnswerError):
        return 503, error.shown
    if isinstance(error, MemoryError) or "CUDA" in str(error):
        return 507, OUT_OF_RESOURCES
    return 503, PREDICTION_FAILED


def _headers(request: dict[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = {
        _text(part["name"]): {"content-type": part.get("contentType")}
        for part in request["parameters"]
    }
    for header in request.get("headers") or ():
        headers[_text(header["name"])] = _text(header["value"])
    return headers


def emit_metrics(metrics: Metrics, start: float) -> None:
    """Report the time since `start`, as `time.time` gave it."""
    metrics.add_time(PREDICTION_METRIC, round((time.time() - start) * 1e3, 2), None, "ms")


class ModelLoader:
    """Loads a handler from an unpacked archive's folder."""

    def load(
        self,
        model_name: str,
        model_dir: str,
        handler: str,
        gpu_id: int | None,
        batch_size: int,
        envelope: str | None = None,
        limit_max_image_pixels: bool = True,
        metrics_cache: Metrics | None = None,
    ) -> Service:
        """Return the service, initialized.

        Args:
            model_dir: The folder, which must be on `sys.path` already.
            gpu_id: The GPU, or None for the CPU.
            envelope: The name of an envelope, or None.
            limit_max_image_pixels: A system property for the handler.
            metrics_cache: Takes metrics; by default they are dropped.
        """
        folder = Path(model_dir)
        manifest: dict[str, Any] = {}
        if (file := folder / "MAR-INF" / "MANIFEST.json").is_file():
            manifest = msgspec.json.decode(file.read_bytes())
        config_file = manifest.get("model", {}).get("configFile")
        config = get_yaml_config(str(folder / config_file)) if config_file else {}
        context = Context(
            model_name, model_dir, manifest, batch_size, gpu_id, ts.VERSION,
            limit_max_image_pixels, metrics_cache or Metrics(model_name, discard), config,
        )  # fmt: skip
        entry, _ = find_entry(handler, folder, context)
        if envelope:
            context.rows_are_requests = False
            entry = ENVELOPES[envelope](entry).handle
        return Service(context, entry)


class ModelLoaderFactory:
    """`ts.model_loader.ModelLoaderFactory`."""

    @staticmethod
    def get_model_loader() -> ModelLoader:
        return ModelLoader()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value)

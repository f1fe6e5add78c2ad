"""`ts.service` and `ts.model_loader`: loading and calling a handler without a server.

For users' scripts and tests that drive a handler in their own process.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ksrv.handlers.metrics import discard
from ksrv.torchserve import surface
from ksrv.torchserve.answers import PREDICTION_FAILED, AnswerError, checked_items
from ksrv.torchserve.context import Context, RequestProcessor
from ksrv.torchserve.entry import Entry, find_entry
from ksrv.torchserve.envelopes import ENVELOPES
from ksrv.torchserve.metrics import Metrics
from ksrv.torchserve.prediction import PredictionException, get_yaml_config

PREDICTION_METRIC = "PredictionTime"


class Service:
    """A loaded handler and its context.

    Args:
        context: What the handler was initialized with.
        entry_point: Called for each batch.
    """

    def __init__(self, context: Context, entry_point: Entry) -> None:
        self._context = context
        self._entry_point = entry_point

    @property
    def context(self) -> Context:
        return self._context

    def predict(self, batch: Sequence[dict[str, Any]]) -> tuple[int, str, list[Any] | None]:
        """Run one batch.

        Args:
            batch: For each request its `requestId`, and `parameters`: a list of {name, value} dicts.

        Returns:
            The status code, a message, and the items, or None after a failure.
        """
        rows = []
        for request in batch:
            parts = request["parameters"]
            rows.append({_text(part["name"]): part["value"] for part in parts})
        self._context.request_ids = {
            index: _text(request["requestId"]) for index, request in enumerate(batch)
        }
        self._context.request_processor = [RequestProcessor({}) for _ in batch]
        start = time.time()
        try:
            items = checked_items(self._entry_point(rows, self._context), len(rows))
        except PredictionException as error:
            return error.error_code, error.message, None
        except AnswerError as error:
            return 503, str(error), None
        except MemoryError:
            return 507, "Out of resources", None
        except Exception as error:  # noqa: BLE001 - the answer of a failed batch
            out = "CUDA" in str(error)
            return (507, "Out of resources", None) if out else (503, PREDICTION_FAILED, None)
        if self._context.metrics is not None:
            emit_metrics(self._context.metrics, start)
        return 200, "Prediction success", items


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
            model_name: The model's name.
            model_dir: The folder, which must be on `sys.path` already.
            handler: As in a manifest.
            gpu_id: The GPU, or None for the CPU.
            batch_size: The most requests in a batch.
            envelope: The name of an envelope, or None.
            limit_max_image_pixels: Reaches the handler as a system property.
            metrics_cache: Where metrics go; nowhere by default.
        """
        folder = Path(model_dir)
        manifest: dict[str, Any] = {}
        if (file := folder / "MAR-INF" / "MANIFEST.json").is_file():
            manifest = msgspec.json.decode(file.read_bytes())
        config_file = manifest.get("model", {}).get("configFile")
        config = get_yaml_config(str(folder / config_file)) if config_file else {}
        context = Context(
            model_name, model_dir, manifest, batch_size, gpu_id, surface.VERSION,
            limit_max_image_pixels, metrics_cache or Metrics(model_name, discard), config,
        )  # fmt: skip
        entry, _ = find_entry(handler, folder, context)
        if envelope:
            entry = ENVELOPES[envelope](entry).handle
        return Service(context, entry)


class ModelLoaderFactory:
    """`ts.model_loader.ModelLoaderFactory`."""

    @staticmethod
    def get_model_loader() -> ModelLoader:
        return ModelLoader()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value)

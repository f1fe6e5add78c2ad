"""Makes `import ts...` work for handlers written for TorchServe, when torchserve is not installed.

Each `ts` module is built from the table below on first import. A name that the table lacks is an
ImportError that says so. An installed torchserve is always found first and left alone.
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from ksrv.torchserve.shims import finder

VERSION = "0.12.0"
HERE = "ksrv.torchserve.api"

_BASE = {
    "BaseHandler": "handlers.base_handler",
    "setup_ort_session": "handlers.base_handler",
    "PROFILER_AVAILABLE": "profiling",
}
_VISION = {"VisionHandler": "handlers.vision_handler", "ImageClassifier": "handlers.vision_handler"}
_UTIL = {
    "PredictionException": "errors",
    "deprecated": "errors",
    "list_classes_from_module": "classes",
    "load_label_mapping": "labels",
    "map_class_to_label": "labels",
    "check_valid_pt2_backend": "model_config",
    "get_yaml_config": "model_config",
    "PT2Backend": "model_config",
    "CLEANUP_REGEX": "ksrv.handlers.builtin.tokenizer",
}
_STREAMING = {"send_intermediate_predict_response": "streaming"}

TABLE: Mapping[str, Mapping[str, str]] = {
    "ts": {},
    "ts.context": {"Context": "context", "RequestProcessor": "context"},
    "ts.service": {
        "Service": "service",
        "emit_metrics": "service",
        "PREDICTION_METRIC": "service",
    },
    "ts.model_loader": {"ModelLoaderFactory": "service"},
    "ts.torch_handler": {},
    "ts.torch_handler.base_handler": _BASE,
    "ts.torch_handler.vision_handler": {"VisionHandler": "handlers.vision_handler"},
    "ts.torch_handler.image_classifier": _VISION,
    "ts.torch_handler.image_segmenter": {**_VISION, "ImageSegmenter": "handlers.vision_handler"},
    "ts.torch_handler.object_detector": {**_VISION, "ObjectDetector": "handlers.vision_handler"},
    "ts.torch_handler.text_handler": {"TextHandler": "handlers.text_handler"},
    "ts.torch_handler.text_classifier": {"TextClassifier": "handlers.text_handler"},
    "ts.torch_handler.contractions": {"CONTRACTION_MAP": "ksrv.handlers.builtin.contractions"},
    "ts.torch_handler.request_envelope": {},
    "ts.torch_handler.request_envelope.base": {"BaseEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.body": {"BodyEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.json": {"JSONEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.kserve": {"KServeEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.kservev2": {"KServev2Envelope": "envelopes"},
    "ts.torch_handler.unit_tests": {},
    "ts.torch_handler.unit_tests.test_utils": {},
    "ts.torch_handler.unit_tests.test_utils.mock_context": {"MockContext": "mock_context"},
    "ts.torch_handler.unit_tests.test_utils.model_dir": {
        "copy_files": "model_dir",
        "download_model": "model_dir",
    },
    "ts.handler_utils": {},
    "ts.handler_utils.timer": {"timed": "handlers.base_handler"},
    "ts.handler_utils.utils": {**_STREAMING, "import_class": "classes"},
    "ts.handler_utils.micro_batching": {
        "MicroBatching": "handlers.micro_batching",
        "get_micro_batch_idx": "handlers.micro_batching",
    },
    "ts.handler_utils.hf_batch_streamer": {"TextIteratorStreamerBatch": "handlers.batch_streamer"},
    "ts.handler_utils.text_utils": {
        "get_tokenizer": "handlers.text_handler",
        "ngrams_iterator": "handlers.text_handler",
    },
    "ts.utils": {},
    "ts.utils.util": _UTIL,
    "ts.utils.timeit_decorator": {"timeit": "handlers.base_handler"},
    "ts.metrics": {},
    "ts.metrics.dimension": {"Dimension": "metrics"},
    "ts.metrics.unit": {"Units": "metrics"},
    "ts.metrics.metric": {"Metric": "metrics"},
    "ts.metrics.metric_type_enum": {"MetricTypes": "metrics"},
    "ts.metrics.metrics_store": {"MetricsStore": "metrics"},
    "ts.metrics.metric_cache_yaml_impl": {"MetricsCacheYamlImpl": "metrics"},
    "ts.protocol": {},
    "ts.protocol.otf_message_handler": {**_STREAMING, "create_predict_response": "frames"},
}
"""The modules of `ts`, and in which module of this package each of their names is at home."""


class TsFinder(finder.StandInFinder):
    """Finds `ts` and its modules in the table.

    Args:
        wanted_by: The model whose handler is loaded; errors name it.
    """

    def __init__(self, wanted_by: str) -> None:
        lacks = "which ksrv's stand-in for torchserve does not have"
        super().__init__("ts", TABLE, wanted_by=wanted_by, lacks=lacks)

    def fill(self, module: ModuleType) -> None:
        """Put the table's names into a module, each from where it is at home."""
        for name, home in TABLE[module.__name__].items():
            path = home if home.startswith("ksrv.") else f"{HERE}.{home}"
            setattr(module, name, getattr(import_module(path), name))
        if module.__name__ == "ts":
            module.__version__ = VERSION  # type: ignore[attr-defined]

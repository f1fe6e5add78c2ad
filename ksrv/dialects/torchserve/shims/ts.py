"""Makes `import ts...` work for handlers written for TorchServe, when torchserve is not installed.

The tables have the modules and names of TorchServe 0.12. TorchServe's modules import names from each other, and
handlers import them from anywhere, so each module here has every name. Libraries that TorchServe's modules import
(`torch`, `np`, `F`) are found in every module too. A name is imported when a handler asks for it; any other name raises
an ImportError. An installed torchserve is always found first and left alone.
"""

import logging
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from ksrv.dialects import stand_ins

VERSION = "0.12.0"
"""The version of TorchServe that handlers see."""
HERE = "ksrv.dialects.torchserve.api"

MODULES = (
    "ts", "ts.version", "ts.context", "ts.service", "ts.model_loader",
    "ts.torch_handler",
    *(
        f"ts.torch_handler.{name}"
        for name in (
            "base_handler", "vision_handler", "image_classifier", "image_segmenter", "object_detector",
            "text_handler", "text_classifier", "contractions", "request_envelope", "request_envelope.base",
            "request_envelope.body", "request_envelope.json", "request_envelope.kserve", "request_envelope.kservev2",
            "unit_tests", "unit_tests.test_utils", "unit_tests.test_utils.mock_context", "unit_tests.test_utils.model_dir",
        )
    ),
    "ts.handler_utils", "ts.handler_utils.timer", "ts.handler_utils.utils", "ts.handler_utils.micro_batching",
    "ts.handler_utils.hf_batch_streamer", "ts.handler_utils.text_utils",
    "ts.utils", "ts.utils.util", "ts.utils.timeit_decorator",
    "ts.metrics",
    *(
        f"ts.metrics.{name}"
        for name in (
            "dimension", "unit", "metric", "metric_abstract", "caching_metric", "metric_type_enum", "metrics_store",
            "metric_cache_abstract", "metric_cache_yaml_impl",
        )
    ),
    "ts.protocol", "ts.protocol.otf_message_handler",
)  # fmt: skip
"""The modules of `ts`."""

HOMES = {
    "classes": ("import_class", "list_classes_from_module"),
    "context": ("Context", "RequestProcessor"),
    "envelopes": ("BaseEnvelope", "BodyEnvelope", "JSONEnvelope", "KServeEnvelope", "KServev2Envelope"),
    "errors": ("PredictionException", "deprecated"),
    "frames": ("create_predict_response",),
    "handlers.base_handler": ("BaseHandler", "setup_ort_session", "timed", "timeit"),
    "handlers.batch_streamer": ("TextIteratorStreamerBatch",),
    "handlers.micro_batching": ("MicroBatching", "get_micro_batch_idx"),
    "handlers.text_handler": ("TextClassifier", "TextHandler", "get_tokenizer", "ngrams_iterator"),
    "handlers.vision_handler": ("ImageClassifier", "ImageSegmenter", "ObjectDetector", "VisionHandler"),
    "labels": ("load_label_mapping", "map_class_to_label"),
    "metrics": ("Dimension", "Metric", "MetricTypes", "MetricUnit", "MetricsCacheYamlImpl", "MetricsStore", "Units"),
    "mock_context": ("MockContext",),
    "model_config": ("PT2Backend", "check_valid_pt2_backend", "get_yaml_config"),
    "model_dir": ("copy_files", "download_model"),
    "profiling": (
        "IPEX_AVAILABLE", "ONNX_AVAILABLE", "PROFILER_AVAILABLE", "PT230_AVAILABLE", "PT2_AVAILABLE", "XLA_AVAILABLE",
    ),
    "service": ("ModelLoader", "ModelLoaderFactory", "PREDICTION_METRIC", "Service", "emit_metrics"),
    "streaming": ("send_intermediate_predict_response",),
}  # fmt: skip
"""The modules of the package `HERE`, and the names of `ts` that each defines."""

NAMES = {name: f"{HERE}.{home}:{name}" for home, names in HOMES.items() for name in names} | {
    "CLEANUP_REGEX": "ksrv.handlers.builtin.tokenizer:CLEANUP_REGEX",
    "CONTRACTIONS_PATTERN": "ksrv.handlers.builtin.tokenizer:CONTRACTIONS_PATTERN",
    "CONTRACTION_MAP": "ksrv.handlers.builtin.contractions:CONTRACTION_MAP",
    "CachingMetric": f"{HERE}.metrics:Metric",
    "HANDLER_METHODS": f"{HERE}.handlers.micro_batching:STAGES",
    "MetricAbstract": f"{HERE}.metrics:Metric",
    "MetricCacheAbstract": f"{HERE}.metrics:Metrics",
    "TsModelLoader": f"{HERE}.service:ModelLoader",
}
"""The names of `ts`, as `MODULE:NAME` of their definitions."""

LIBRARIES = {
    "F": "torch.nn.functional",
    "Image": "PIL.Image",
    "IntegratedGradients": "captum.attr:IntegratedGradients",
    "LayerIntegratedGradients": "captum.attr:LayerIntegratedGradients",
    "TokenReferenceBase": "captum.attr:TokenReferenceBase",
    "ProfilerActivity": "torch.profiler:ProfilerActivity",
    "profile": "torch.profiler:profile",
    "record_function": "torch.profiler:record_function",
    "ABC": "abc:ABC",
    "np": "numpy",
    "ort": "onnxruntime",
    "transforms": "torchvision.transforms",
    "T": "torchvision.transforms",
    "xm": "torch_xla.core.xla_model",
} | {
    name: name
    for name in (
        "abc", "base64", "importlib", "inspect", "io", "json", "logging", "os", "packaging", "psutil", "re", "string",
        "struct", "time", "torch", "unicodedata", "uuid", "yaml",
    )
}  # fmt: skip
"""The imports of TorchServe's modules from other packages, as `MODULE` or `MODULE:NAME`."""


class TsFinder(stand_ins.StandInFinder):
    """Finds the modules in `MODULES`.

    Args:
        wanted_by: The model whose handler is loaded; errors name it.
    """

    def __init__(self, wanted_by: str) -> None:
        error_end = "which ksrv's stand-in for torchserve does not have"
        super().__init__("ts", MODULES, wanted_by=wanted_by, error_end=error_end)

    def fill(self, module: ModuleType) -> None:
        """Put the version into a module, and into `__all__` the names for `import *`."""
        module.__version__ = VERSION  # type: ignore[attr-defined]
        module.__all__ = list(NAMES)  # type: ignore[attr-defined]

    def find_name(self, module: str, name: str, known: Iterable[str] = ()) -> Any:
        """Return a name of `ts`, a library that TorchServe's modules import, or the module's logger."""
        if name == "logger":
            return logging.getLogger(module)
        path = NAMES.get(name) or LIBRARIES.get(name)
        if path is None:
            return super().find_name(module, name, NAMES)
        home, _, defined = path.partition(":")
        found = import_module(home)
        return getattr(found, defined) if defined else found

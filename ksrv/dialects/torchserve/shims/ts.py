"""Makes `import ts...` work for handlers written for TorchServe, when torchserve is not installed.

Each `ts` module is built from the table below on first import. The table has the names of TorchServe
0.12, also names that a module only imports from another module of `ts`: handlers import them from
anywhere. Libraries that TorchServe's modules import (`torch`, `np`, `F`) are found in every module, and
are imported when a handler asks for them. Any other name raises an ImportError. An installed
torchserve is always found first and left alone.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from ksrv.dialects.torchserve.shims import finder

VERSION = "0.12.0"
HERE = "ksrv.dialects.torchserve.api"

_CONTEXT = {"Context": "context", "RequestProcessor": "context"}
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
_FRAMES = {"create_predict_response": "frames"}
_STREAMING = {"send_intermediate_predict_response": "streaming"}
_TIMED = {"timed": "handlers.base_handler"}
_BASE_HANDLER = {"BaseHandler": "handlers.base_handler"}
_BASE = {
    **_BASE_HANDLER,
    **_TIMED,
    **{name: _UTIL[name] for name in ("check_valid_pt2_backend", "list_classes_from_module", "load_label_mapping")},
    "setup_ort_session": "handlers.base_handler",
    "PROFILER_AVAILABLE": "profiling",
    "PT2_AVAILABLE": "profiling",
    "PT230_AVAILABLE": "profiling",
    "IPEX_AVAILABLE": "profiling",
    "ONNX_AVAILABLE": "profiling",
    "XLA_AVAILABLE": "profiling",
}  # fmt: skip
_LABELLED = {"map_class_to_label": "labels"}
_VISION = {**_BASE_HANDLER, **_TIMED, "VisionHandler": "handlers.vision_handler"}
_TOKENS = {"get_tokenizer": "handlers.text_handler", "ngrams_iterator": "handlers.text_handler"}
_TEXT = {
    **_BASE_HANDLER,
    **_TOKENS,
    "TextHandler": "handlers.text_handler",
    "CLEANUP_REGEX": "ksrv.handlers.builtin.tokenizer",
    "CONTRACTIONS_PATTERN": "ksrv.handlers.builtin.tokenizer",
    "CONTRACTION_MAP": "ksrv.handlers.builtin.contractions",
}
_SERVICE = {"Service": "service", "emit_metrics": "service", "PREDICTION_METRIC": "service"}
_DIMENSION = {"Dimension": "metrics"}
_TYPES = {"MetricTypes": "metrics"}
_METRIC = {**_TYPES, "Units": "metrics", "MetricUnit": "metrics"}
_CACHING = {"CachingMetric": "metrics:Metric", "MetricAbstract": "metrics:Metric"}
_CACHE = {"MetricCacheAbstract": "metrics:Metrics"}
_BASE_ENVELOPE = {"BaseEnvelope": "envelopes"}

TABLE: Mapping[str, Mapping[str, str]] = {
    "ts": {"__version__": "ksrv.dialects.torchserve.shims.ts:VERSION"},
    "ts.version": {"__version__": "ksrv.dialects.torchserve.shims.ts:VERSION"},
    "ts.context": _CONTEXT,
    "ts.service": {
        **_CONTEXT,
        **_SERVICE,
        **_FRAMES,
        "PredictionException": "errors",
        "get_yaml_config": "model_config",
    },
    "ts.model_loader": {
        "ModelLoaderFactory": "service",
        "ModelLoader": "service",
        "TsModelLoader": "service:ModelLoader",
        "Service": "service",
        "MetricsCacheYamlImpl": "metrics",
        "list_classes_from_module": "classes",
    },
    "ts.torch_handler": {},
    "ts.torch_handler.base_handler": _BASE,
    "ts.torch_handler.densenet_handler": {
        "DenseNetHandler": "handlers.densenet_handler",
        "list_classes_from_module": "classes",
    },
    "ts.torch_handler.vision_handler": _VISION,
    "ts.torch_handler.image_classifier": {
        **_VISION,
        **_LABELLED,
        "ImageClassifier": "handlers.vision_handler",
    },
    "ts.torch_handler.image_segmenter": {**_VISION, "ImageSegmenter": "handlers.vision_handler"},
    "ts.torch_handler.object_detector": {
        **_VISION,
        **_LABELLED,
        "ObjectDetector": "handlers.vision_handler",
    },
    "ts.torch_handler.text_handler": _TEXT,
    "ts.torch_handler.text_classifier": {
        **_TEXT,
        **_LABELLED,
        "TextClassifier": "handlers.text_handler",
    },
    "ts.torch_handler.contractions": {"CONTRACTION_MAP": "ksrv.handlers.builtin.contractions"},
    "ts.torch_handler.request_envelope": {},
    "ts.torch_handler.request_envelope.base": _BASE_ENVELOPE,
    "ts.torch_handler.request_envelope.body": {**_BASE_ENVELOPE, "BodyEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.json": {**_BASE_ENVELOPE, "JSONEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.kserve": {**_BASE_ENVELOPE, "KServeEnvelope": "envelopes"},
    "ts.torch_handler.request_envelope.kservev2": {
        **_BASE_ENVELOPE,
        "KServev2Envelope": "envelopes",
    },
    "ts.torch_handler.unit_tests": {},
    "ts.torch_handler.unit_tests.test_utils": {},
    "ts.torch_handler.unit_tests.test_utils.mock_context": {
        "MockContext": "mock_context",
        "MetricsStore": "metrics",
        "get_yaml_config": "model_config",
    },
    "ts.torch_handler.unit_tests.test_utils.model_dir": {
        "copy_files": "model_dir",
        "download_model": "model_dir",
    },
    "ts.handler_utils": {},
    "ts.handler_utils.timer": _TIMED,
    "ts.handler_utils.utils": {
        **_STREAMING,
        **_FRAMES,
        "Context": "context",
        "import_class": "classes",
    },
    "ts.handler_utils.micro_batching": {
        "MicroBatching": "handlers.micro_batching",
        "get_micro_batch_idx": "handlers.micro_batching",
        "HANDLER_METHODS": "handlers.micro_batching:STAGES",
        "PROFILER_AVAILABLE": "profiling",
    },
    "ts.handler_utils.hf_batch_streamer": {"TextIteratorStreamerBatch": "handlers.batch_streamer"},
    "ts.handler_utils.text_utils": _TOKENS,
    "ts.utils": {},
    "ts.utils.util": _UTIL,
    "ts.utils.timeit_decorator": {"timeit": "handlers.base_handler"},
    "ts.metrics": {},
    "ts.metrics.dimension": _DIMENSION,
    "ts.metrics.unit": {"Units": "metrics"},
    "ts.metrics.metric": {**_METRIC, **_CACHING, "Metric": "metrics"},
    "ts.metrics.metric_abstract": {**_METRIC, **_CACHING},
    "ts.metrics.caching_metric": {**_TYPES, **_DIMENSION, **_CACHING},
    "ts.metrics.metric_type_enum": _TYPES,
    "ts.metrics.metrics_store": {
        **_DIMENSION,
        "Metric": "metrics",
        "MetricsStore": "metrics",
    },
    "ts.metrics.metric_cache_abstract": {**_TYPES, **_DIMENSION, **_CACHING, **_CACHE},
    "ts.metrics.metric_cache_yaml_impl": {
        **_TYPES,
        **_CACHING,
        **_CACHE,
        "MetricsCacheYamlImpl": "metrics",
    },
    "ts.protocol": {},
    "ts.protocol.otf_message_handler": {**_STREAMING, **_FRAMES, "deprecated": "errors"},
}
"""The modules of `ts`, and in which module of this package each of their names is defined: `MODULE`, or
`MODULE:NAME` if the name differs."""

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


class TsFinder(finder.StandInFinder):
    """Finds `ts` and its modules in the table.

    Args:
        wanted_by: The model whose handler is loaded; errors name it.
    """

    def __init__(self, wanted_by: str) -> None:
        lacks = "which ksrv's stand-in for torchserve does not have"
        super().__init__("ts", TABLE, wanted_by=wanted_by, lacks=lacks)

    def fill(self, module: ModuleType) -> None:
        """Put the table's names into a module."""
        for name, home in TABLE[module.__name__].items():
            path = home if home.startswith("ksrv.") else f"{HERE}.{home}"
            setattr(module, name, _import(path, name))

    def find_name(self, module: str, name: str) -> Any:
        """Return a library that TorchServe's modules import, or the module's logger."""
        if name == "logger":
            return logging.getLogger(module)
        return (
            _import(path, "") if (path := LIBRARIES.get(name)) else super().find_name(module, name)
        )


def _import(path: str, name: str) -> Any:
    """Return what `MODULE:NAME` or `MODULE` names; `name` is meant if the path has no name."""
    module, _, other = path.partition(":")
    found = import_module(module)
    return getattr(found, other or name) if other or name else found

"""The backends of Triton that ksrv replaces, and the keys that it refuses or ignores for all of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of Triton that ksrv replaces.

    Attributes:
        name: The name in config.pbtxt.
        platform: The platform in the metadata of such a model, or None for the platform of ksrv's loader.
        file: The default name of the model file.
    """

    name: str
    platform: str | None
    file: str


ENSEMBLE = Backend("ensemble", "ensemble", "")
BACKENDS = {
    "onnxruntime": Backend("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    "pytorch": Backend("pytorch", "pytorch_libtorch", "model.pt"),
    "openvino": Backend("openvino", None, "model.xml"),
    "python": Backend("python", None, "model.py"),
}
PLATFORMS = {
    "onnxruntime_onnx": BACKENDS["onnxruntime"],
    "pytorch_libtorch": BACKENDS["pytorch"],
    "ensemble": ENSEMBLE,
}
"""Older files name a platform instead of a backend."""
REFUSED = {
    "batch_input": "inputs that Triton makes of a batch are not made here",
    "batch_output": "outputs that Triton scatters over a batch are not split here",
    "cc_model_filenames": "files for one kind of GPU are not chosen here",
    "model_operations": "libraries of custom operators are not loaded",
    "model_repository_agents": "agents that change a model before it is loaded are not run",
}
"""Why ksrv does not serve a model with such a key."""
IGNORED = {
    "model_warmup": "ksrv warms every batch size up by itself where the shapes are closed",
    "metric_tags": "the metrics have the labels model and version",
    "model_metrics": "the metrics' buckets are fixed",
}
"""Why such a key has no effect."""

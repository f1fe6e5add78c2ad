"""Makes the module `triton_python_backend_utils` of the classes and functions in `api/`."""

import sys
from types import ModuleType

from ksrv.dialects.triton.python_backend.api import (
    calls,
    datatypes,
    errors,
    logger,
    metrics,
    model_config,
    request,
    response,
    server,
    tensor,
)

NAME = "triton_python_backend_utils"

_NAMES = {
    calls: ("ResponseIterator",),
    datatypes: (
        "TRITON_STRING_TO_NUMPY",
        "get_input_config_by_name",
        "get_input_tensor_by_name",
        "get_output_config_by_name",
        "get_output_tensor_by_name",
        "numpy_to_triton_type",
        "triton_string_to_numpy",
        "triton_to_numpy_type",
        "using_decoupled_model_transaction_policy",
    ),
    errors: ("TritonError", "TritonModelException"),
    logger: ("Logger",),
    metrics: ("Metric", "MetricFamily", "MetricKind"),
    model_config: ("ModelConfig",),
    request: ("InferenceRequest", "InferenceTrace", "MemoryType", "PreferredMemory"),
    response: ("InferenceResponse", "InferenceResponseSender"),
    server: ("is_model_ready", "load_model", "unload_model"),
    tensor: ("Tensor",),
}
_VALUES = {
    "TRITONSERVER_MEMORY_CPU": request.MemoryType.TRITONSERVER_MEMORY_CPU,
    "TRITONSERVER_MEMORY_GPU": request.MemoryType.TRITONSERVER_MEMORY_GPU,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": request.SEQUENCE_START,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": request.SEQUENCE_END,
    "TRITONSERVER_REQUEST_RELEASE_ALL": request.RELEASE_ALL,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": request.RELEASE_RESCHEDULE,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": response.COMPLETE_FINAL,
}


def install(model: str) -> None:
    """Make the module importable in this process; a file of the same name is not imported.

    Args:
        model: The model that imports the module, for errors about missing names.
    """
    module = ModuleType(NAME, "Triton's Python backend, as ksrv has it.")
    for home, names in _NAMES.items():
        for name in names:
            setattr(module, name, getattr(home, name))
    for name, value in _VALUES.items():
        setattr(module, name, value)

    def missing(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{model} wants {NAME}.{name}, which ksrv does not have")

    module.__getattr__ = missing  # type: ignore[method-assign]
    sys.modules[NAME] = module

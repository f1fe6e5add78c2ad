"""Runs batches of a TorchServe handler under torch's profiler, if the environment has ENABLE_TORCH_PROFILER.

Any value of the variable switches the profiler on, as in TorchServe. If the value is an absolute path, traces are
written into that folder, otherwise to `pytorch_profiler/` below the system's temporary folder. The regions of a trace
are named after the stages.
"""

import logging
import os
import tempfile
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("ksrv.dialects.torchserve")

VARIABLE = "ENABLE_TORCH_PROFILER"
TABLE_OPERATIONS = 10
"""Number of operations in the table that is logged after each batch."""
PROFILER_AVAILABLE = PT2_AVAILABLE = PT230_AVAILABLE = True
"""Names that TorchServe's modules export. Always true, because every torch that ksrv supports has these features."""
ONNX_AVAILABLE = find_spec("onnxruntime") is not None
XLA_AVAILABLE = find_spec("torch_xla") is not None
IPEX_AVAILABLE = False
"""ksrv does not use Intel's extension for PyTorch."""


def is_wanted() -> bool:
    """Tell whether to profile batches."""
    return bool(os.environ.get(VARIABLE))


def trace_folder(model: str) -> str:
    """Return the folder for the traces of a model.

    Args:
        model: The model's name, or "" if it has none.
    """
    value = os.environ.get(VARIABLE, "")
    default = os.path.join(tempfile.gettempdir(), "pytorch_profiler")
    top = value if os.path.isabs(value) else default
    return os.path.join(top, model)


def profiled(handler: Any, data: Any) -> tuple[Any, Any]:
    """Run the stages of one batch under the profiler, write a trace, and log the slowest operations.

    Args:
        handler: The handler. Its `profiler_args` are the keywords of `torch.profiler.profile`; if it is empty,
            operations on CPU and GPU are recorded with their shapes.

    Returns:
        The handler's answer, and the profiler.
    """
    import torch.profiler
    from torch.profiler import ProfilerActivity, record_function

    options = dict(handler.profiler_args or {})
    if not options:
        known = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        wanted = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
        options = {"activities": [kind for kind in wanted if kind in known], "record_shapes": True}
    if "on_trace_ready" not in options:
        folder = trace_folder((handler.manifest or {}).get("model", {}).get("modelName", ""))
        options["on_trace_ready"] = torch.profiler.tensorboard_trace_handler(folder)
        log.info("the profiler writes its traces to %s", folder)
    with torch.profiler.profile(**options) as profiler:
        with record_function("preprocess"):
            prepared = handler.preprocess(data)
        if handler._is_explain():
            with record_function("explain"):
                output = handler.explain_handle(prepared, data)
        else:
            with record_function("inference"):
                result = handler.inference(prepared)
            with record_function("postprocess"):
                output = handler.postprocess(result)
    table = profiler.key_averages().table(sort_by="cpu_time_total", row_limit=TABLE_OPERATIONS)
    log.info("the slowest operations of the batch:")
    for line in table.splitlines():
        log.info("%s", line)
    return output, profiler

"""The settings of a model that was written for Triton's Python backend."""

from typing import Any

from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.repository.report import Report

PYTHON_RUNNER = "ksrv.dialects.triton.python_backend.runner:PythonModelRunner"
EXECUTION_ENV_PATH = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
"""The placeholder for the model's folder in the value of EXECUTION_ENV_PATH."""
PYTHON_PARAMETERS = {
    EXECUTION_ENV_PATH: "the model's processes run in this environment",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "inputs always come in the memory of the CPU",
}
"""The `parameters` that Triton's Python backend reads, and what the report says about them."""
START_TIMEOUT_S = 600.0
"""Triton waits for a model without a limit. ksrv assumes that a model which takes longer than this hangs."""


def python_settings(keys: Keys, report: Report) -> dict[str, Any]:
    """Return the settings in which Python models differ from other models.

    As in Triton, such a model has a separate process, and only the timeouts of its requests limit its time. A batch is
    not run again after its process died, because the model may have sent some of the answers.
    """
    settings: dict[str, Any] = {}
    for entry in keys.parameters or ():
        if entry.key == EXECUTION_ENV_PATH:
            settings["python"] = entry.value.string_value.removeprefix(f"{MODEL_DIRECTORY}/")
    report.applied.setdefault("backend", "python")
    return settings | {
        "executor": "process",
        "runner": PYTHON_RUNNER,
        "retry": False,
        "timeout_ms": 0,
        "start_timeout_s": START_TIMEOUT_S,
    }

"""The environment of a handler process: thread budgets, its own variables, where ksrv is found."""

from collections.abc import Mapping

from ksrv.python_path import with_ksrv

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Variables that OpenMP (and torch), MKL, OpenBLAS, numexpr, Accelerate and OpenCV read when loaded."""


def handler_environment(
    inherited: Mapping[str, str], own: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Return the environment to start a handler process with.

    Args:
        own: The variables that the model's settings give; they win over all others.
        threads: CPU threads of one instance, or 0 to leave the libraries to themselves.

    Returns:
        The environment. `PYTHONPATH` finds the ksrv that this process runs from any working
        directory, after what was inherited.
    """
    environment = dict(inherited)
    if threads > 0:
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment |= own
    environment["PYTHONPATH"] = with_ksrv(environment.get("PYTHONPATH", ""))
    return environment

"""Adds details to answers with `--debug`: the end of a traceback, and a profile if a request asks for one.

Answers to requests through a proxy get neither, because such clients are not on this machine.
"""

import io
import pstats
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ksrv.errors import TEXT_BYTES, KsrvError, without_paths
from ksrv.request import ExecutorInputs, ExecutorOutputs, is_forwarded

if sys.version_info >= (3, 12):  # cProfile mixes the calls of all threads from this version on
    from profile import Profile
else:
    from cProfile import Profile

Run = Callable[[ExecutorInputs], ExecutorOutputs]

PARAMETER = "profile"
"""The request parameter that asks for a profile: `python` or `torch`."""

PROFILE_LINES = 20
FRAMES = 4
"""How many frames of a traceback an answer has at most."""

_profiling = threading.Lock()


def came_through_a_proxy(inputs: ExecutorInputs) -> bool:
    """Tell whether a request of a batch came through a proxy."""
    return any(is_forwarded(request.headers) for request in inputs.requests)


def add_traceback(
    failure: KsrvError, error: BaseException, inputs: ExecutorInputs, *folders: Path
) -> None:
    """Add the last frames of an error's traceback to the message of a failure.

    Args:
        folders: The model's folders, whose files are shown by name.
    """
    if came_through_a_proxy(inputs):
        return
    frames = traceback.extract_tb(error.__traceback__)
    own = [call for call in frames if any(Path(call.filename).is_relative_to(at) for at in folders)]
    lines = [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line or ''}"
        for frame in (own or frames)[-FRAMES:]
    ]
    lines += traceback.format_exception_only(error)[-1].strip().splitlines()[:1]
    text = without_paths("\n".join(lines), *folders)
    # A few bytes are left for the text between the message and the traceback.
    room = TEXT_BYTES - len(failure.message.encode()) - 8
    end = (
        text.encode("utf-8", "replace")[-max(room, 0) :].decode("utf-8", "ignore")
        if room > 0
        else ""
    )
    failure.message = f"{failure.message}:\n{end}"
    failure.args = (failure.message,)


def profiled(run: Run, inputs: ExecutorInputs) -> ExecutorOutputs:
    """Run a batch, and profile it if a request asks for a profile."""
    asking = {
        index: request.parameters[PARAMETER]
        for index, request in enumerate(inputs.requests)
        if request.parameters.get(PARAMETER) in ("python", "torch")
    }
    if not asking or came_through_a_proxy(inputs):
        return run(inputs)
    kind = next(iter(asking.values()))
    # A process can have only one profiler. No request waits for it, because a profiled handler may call this model.
    if _profiling.acquire(blocking=False):
        try:
            outputs, text = (_torch if kind == "torch" else _python)(run, inputs)
        finally:
            _profiling.release()
    else:
        outputs, text = run(inputs), "another request is being profiled"
    for index in asking:
        outputs.parameters.setdefault(index, {})[PARAMETER] = text
    return outputs


def _python(run: Run, inputs: ExecutorInputs) -> tuple[ExecutorOutputs, str]:
    profile = Profile(time.perf_counter)
    outputs = profile.runcall(run, inputs)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative").print_stats(
        PROFILE_LINES
    )
    return outputs, text.getvalue().strip()


def _torch(run: Run, inputs: ExecutorInputs) -> tuple[ExecutorOutputs, str]:
    try:
        import torch
    except ModuleNotFoundError:
        return run(inputs), "torch is not installed"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        outputs = run(inputs)
    table: str = profile.key_averages().table(sort_by="cpu_time_total", row_limit=PROFILE_LINES)
    return outputs, table.strip() or "no operation of torch was run"

"""Makes the executor of an instance: inline (in this process) or a handler process, by the model's `executor`."""

from collections.abc import Callable

from msgspec.structs import replace

from ksrv.engine.composition import ModelCalls
from ksrv.engine.executor import Executor
from ksrv.engine.instances.inline import InlineExecutor
from ksrv.handlers.diagnostics.metrics import Emit
from ksrv.limits import Limits
from ksrv.model.config import ModelSource
from ksrv.request import InferRequest, RequestHandle


def executor_for(
    source: ModelSource,
    instance: int,
    threads: int,
    *,
    emit: Emit,
    limits: Limits,
    submit: Callable[..., RequestHandle],
    ask: Callable[[InferRequest], RequestHandle] | None,
    debug: bool,
) -> Executor:
    """Return the executor that a model's settings ask for.

    Args:
        threads: CPU threads that the executor may use.
        emit: Takes the values that the handler reports.
        limits: Bounds on requests, which a handler in a separate process applies when it decodes.
        submit: `Engine.submit`, for handlers that call other models.
        ask: Answers requests of handlers to the server itself, such as loading a model; None if they get an error.
        debug: See `EngineSettings`.
    """
    if debug:
        source = replace(source, debug=True)
    config = source.config
    assert config is not None, "a model without settings is not loaded"
    calls = ModelCalls(submit, source.name, ask, instances=config.instances)
    if config.executor == "process":
        from ksrv.engine.processes.process import ProcessExecutor

        return ProcessExecutor(
            source,
            instance=instance,
            threads=threads,
            start_timeout_s=config.start_timeout_s,
            emit=emit,
            limits=limits,
            submit=calls,
        )
    return InlineExecutor(source, instance=instance, threads=threads, emit=emit, submit=calls)

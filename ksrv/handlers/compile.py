"""Compiles a model with `torch.compile` (section `pt2:`), or records it in CUDA graphs (`cuda_graphs:`).

`torch.compile` is lazy: it compiles in the first calls, which the warm-up makes. So the compiled model is wrapped. If a
call fails because of the compiler, the wrapper logs that once, repeats the call with the eager model, and uses only the
eager model from then on. With `required: true` the model fails instead.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ksrv.handlers.context import Context
from ksrv.handlers.devices.cuda import CudaDevice
from ksrv.handlers.devices.graphs import GraphedModel, clone
from ksrv.loaders.arguments import NamedArguments
from ksrv.loaders.loaded import LoadedModel
from ksrv.loaders.torch_compiler import torch_compiler
from ksrv.model.compile_plan import CompilePlan, read_plan
from ksrv.model.fault import Fault

if TYPE_CHECKING:
    from ksrv.handlers.handler_context import HandlerContext

log = logging.getLogger("ksrv.handlers")


def compile_model(loaded: LoadedModel, context: Context) -> Any:
    """Return the model that handlers call: compiled if `pt2:` asks for it.

    Raises:
        Fault: The section is malformed, or the required compilation is impossible.
    """
    plan = read_plan(context.config.pt2)
    if not plan.enable:
        return loaded.model
    model, wrapper = loaded.model, None
    if isinstance(model, NamedArguments):
        # Compile the module, not the wrapper that orders its arguments.
        model, wrapper = model.module, model
    reason = _obstacle(model, plan)
    if reason is None:
        compiled = CompiledModel(model, plan, context)
        return compiled if wrapper is None else NamedArguments(compiled, wrapper.order)
    if plan.required:
        raise Fault(("pt2",), f"{reason}, and it is required")
    log.warning("the model %s stays eager: %s", context.model_name, reason)
    return loaded.model


def graphed_model(model: Any, loaded: LoadedModel, context: Context) -> Any:
    """Return the model that handlers call: recorded in graphs if `cuda_graphs:` asks for it.

    Args:
        model: The model that `compile_model` returned.
    """
    if not (context.config.cuda_graphs and loaded.is_torch):
        return model
    if records_graphs(read_plan(context.config.pt2).arguments):
        log.warning("the model %s: pt2 already records graphs", context.model_name)
        return model
    device = cast("HandlerContext", context).opened_device
    if not isinstance(device, CudaDevice):
        return model
    return GraphedModel(model, device, context.model_name)


def _obstacle(model: Any, plan: CompilePlan) -> str | None:
    """Return why the model cannot be compiled, or None."""
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        return "torch.compile has no effect on a TorchScript file"
    if not isinstance(model, torch.nn.Module):
        return "only eager modules are compiled; this file is compiled or exported already"
    backend = plan.arguments.get("backend", "inductor")
    if backend not in torch.compiler.list_backends(exclude_tags=()):
        return f"torch.compile knows no backend {backend!r}"
    return None


class CompiledModel:
    """A compiled module that is replaced by the eager module if the compiler fails.

    Attributes:
        eager: The module as it was loaded.
        failure: Why the eager module is used instead, or None.
    """

    def __init__(self, module: Any, plan: CompilePlan, context: Context) -> None:
        self.eager = module
        self.failure: str | None = None
        self._required = plan.required
        self._name = context.model_name
        self._graphs = context.device.startswith("cuda") and records_graphs(plan.arguments)
        self._run: Any = module
        try:
            self._run = _compile(module, plan.arguments)
        except Exception as error:  # noqa: BLE001  back ends raise any exception
            self._give_up(error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._run is self.eager:
            return self.eager(*args, **kwargs)
        if self._graphs:
            import torch

            mark_step: Any = torch.compiler.cudagraph_mark_step_begin
            mark_step()  # the graphs of the previous call may be overwritten
        try:
            result = self._run(*args, **kwargs)
        except Exception as error:
            if not _is_from_compiler(error):
                raise
            # Tracing also fails for inputs that the model itself refuses. Then the eager call raises the model's
            # error, and the compiled model stays in use.
            result = self.eager(*args, **kwargs)
            self._give_up(error)
            return result
        # The next call overwrites the memory of the graphs.
        return clone(result) if self._graphs else result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.eager, name)

    def _give_up(self, error: Exception) -> None:
        text = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())
        self.failure = f"{type(error).__name__}: {text[:400]}"
        if self._required:  # every further call is refused as well
            text = f"torch.compile failed and is required: {self.failure}"
            raise Fault(("pt2",), text) from error
        self._run = self.eager
        log.warning("the model %s stays eager: torch.compile failed: %s", self._name, self.failure)


def _compile(module: Any, arguments: Mapping[str, Any]) -> Any:
    import torch

    with torch_compiler():
        return torch.compile(module, **arguments)


def _is_from_compiler(error: Exception) -> bool:
    """Tell whether an error is from the compiler, not from the model's code."""
    import torch._dynamo.exc as dynamo
    import torch._inductor.exc as inductor

    kinds = (dynamo.TorchDynamoException, inductor.CppCompileError, inductor.CppWrapperCodegenError)
    return isinstance(error, kinds)


def records_graphs(arguments: Mapping[str, Any]) -> bool:
    """Tell whether `torch.compile` with these arguments records CUDA graphs itself."""
    options = arguments.get("options") or {}
    return (
        arguments.get("mode") in ("reduce-overhead", "max-autotune")
        or bool(options.get("triton.cudagraphs"))
        or arguments.get("backend") in ("cudagraphs", "aot_cudagraphs")
    )

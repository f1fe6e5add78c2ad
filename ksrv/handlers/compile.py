"""`torch.compile` from the `pt2:` section, with the eager model as the documented fallback.

`torch.compile` itself is lazy: the real work happens in the first calls,
which are the warm-up's. So the compiled model is wrapped: when a call fails because of the compiler,
the wrapper logs it once, uses the eager model from then on, and repeats the call; with
`required: true` the failure is the model's.
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
    """Return the model that handlers call: compiled where `pt2:` asks for it.

    Raises:
        Fault: The section is malformed, or the required compilation is impossible.
    """
    plan = read_plan(context.config.pt2)
    if not plan.enable:
        return loaded.model
    model, wrapper = loaded.model, None
    if isinstance(model, NamedArguments):
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
    """Why `torch.compile` would do nothing, or None."""
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
    """A compiled module that can go back to the eager one.

    Attributes:
        eager: The module as it was loaded.
        failure: Why the eager module is used after all, or None.
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
            mark_step()
        try:
            result = self._run(*args, **kwargs)
        except Exception as error:
            if not _is_compilers(error):
                raise
            # Tracing also fails on inputs that the model itself refuses. Then the eager call raises
            # the model's error, and compilation is not to blame.
            result = self.eager(*args, **kwargs)
            self._give_up(error)
            return result
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


def _is_compilers(error: Exception) -> bool:
    """Whether an error came from compiling rather than from the model's code."""
    import torch._dynamo.exc as dynamo
    import torch._inductor.exc as inductor

    kinds = (dynamo.TorchDynamoException, inductor.CppCompileError, inductor.CppWrapperCodegenError)
    return isinstance(error, kinds)


def records_graphs(arguments: Mapping[str, Any]) -> bool:
    options = arguments.get("options") or {}
    return (
        arguments.get("mode") in ("reduce-overhead", "max-autotune")
        or bool(options.get("triton.cudagraphs"))
        or arguments.get("backend") in ("cudagraphs", "aot_cudagraphs")
    )

"""`ts.torch_handler.base_handler`: the base class of handlers written for TorchServe.

Subclasses depend on the order of the steps in `initialize` and on the attributes that it sets, so both are
TorchServe's. Unlike TorchServe's module, importing this module changes no setting of torch.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ksrv.dialects.torchserve.api import profiling
from ksrv.dialects.torchserve.api.classes import list_classes_from_module
from ksrv.dialects.torchserve.api.labels import load_label_mapping
from ksrv.dialects.torchserve.api.model_config import check_valid_pt2_backend
from ksrv.loaders import package
from ksrv.loaders.eager import read_state
from ksrv.loaders.loaded import LoadRequest
from ksrv.machine.cgroups import usable_cores

logger = logging.getLogger("ksrv.dialects.torchserve")

F = TypeVar("F", bound=Callable[..., Any])


def timed(function: F) -> F:
    """Report the method's time as the metric `ts_handler_<name>` if `handler.profile` of the model's YAML is set.

    ksrv measures the stages anyway; this metric is for dashboards that expect TorchServe's name.
    """

    @wraps(function)
    def measured(self: Any, *arguments: Any, **options: Any) -> Any:
        context: Any = getattr(self, "context", None)
        config = getattr(context, "model_yaml_config", None) or {}
        if not (config.get("handler") or {}).get("profile"):
            return function(self, *arguments, **options)
        start = time.monotonic()
        try:
            return function(self, *arguments, **options)
        finally:
            milliseconds = (time.monotonic() - start) * 1e3
            context.metrics.add_time(f"ts_handler_{function.__name__}", milliseconds, None, "ms")

    return measured  # type: ignore[return-value]


def timeit(function: F) -> F:
    """Log how long each call takes: `ts.utils.timeit_decorator.timeit`."""

    @wraps(function)
    def measured(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds = time.perf_counter() - start
            logger.info("%s took %.3f ms", function.__name__, seconds * 1e3)

    return measured  # type: ignore[return-value]


def setup_ort_session(model_pt_path: str, map_location: str | None) -> Any:
    """Return an ONNX Runtime session with one thread for each CPU of the instance's share."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    share = os.environ.get("OMP_NUM_THREADS", "")  # ksrv sets it in handler processes
    options.intra_op_num_threads = int(share) if share.isdecimal() else usable_cores()
    providers = ["CPUExecutionProvider"]
    if map_location == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    return onnxruntime.InferenceSession(model_pt_path, sess_options=options, providers=providers)


class BaseHandler:
    """The handler that TorchServe's handlers derive from.

    Subclasses may skip `super().__init__()`: every name has a class-level default.
    """

    model: Any = None
    mapping: dict[str, Any] | None = None
    device: Any = None
    initialized = False
    context: Any = None
    model_pt_path: str | None = None
    manifest: dict[str, Any] | None = None
    map_location: str | None = None
    explain = False
    target = 0
    profiler_args: dict[str, Any] = {}
    model_yaml_config: dict[str, Any] = {}

    def __init__(self) -> None:
        self.profiler_args = {}

    def initialize(self, context: Any) -> None:
        """Choose the device, load the model, compile it, load the labels."""
        if context is not None and hasattr(context, "model_yaml_config"):
            self.model_yaml_config = context.model_yaml_config or {}
        properties = context.system_properties
        self._choose_device(properties)
        self.manifest = context.manifest
        model_dir = properties.get("model_dir")
        serialized = (self.manifest or {}).get("model", {}).get("serializedFile")
        self.model_pt_path = os.path.join(model_dir, serialized) if serialized else None
        self._load(model_dir)
        self._compile()
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _choose_device(self, properties: dict[str, Any]) -> None:
        import torch

        gpu = properties.get("gpu_id")
        if gpu is not None and torch.cuda.is_available():
            self.map_location, name = "cuda", f"cuda:{gpu}"
        elif (
            gpu is not None
            and os.environ.get("TS_IPEX_GPU_ENABLE", "false") == "true"
            and torch.xpu.is_available()
        ):
            self.map_location, name = "xpu", f"xpu:{gpu}"
        elif gpu is not None and torch.backends.mps.is_available():
            self.map_location, name = "mps", "mps"
        elif (xla := _xla_device()) is not None:
            self.device = xla
            return
        else:
            self.map_location, name = "cpu", "cpu"
        self.device = torch.device(name)

    def _load(self, model_dir: str) -> None:
        assert self.manifest is not None
        model_file = self.manifest["model"].get("modelFile", "")
        path = self.model_pt_path
        if model_file:
            self.model = self._load_pickled_model(model_dir, model_file, path)
            self.model.to(self.device)
            self.model.eval()
        elif path is None:
            raise RuntimeError(
                "No model weights could be loaded: the archive has neither a model file nor a"
                " serialized file"
            )
        elif path.endswith(".pt"):
            self.model = self._load_torchscript_model(path)
            self.model.eval()
        elif path.endswith(".pt2"):
            wanted = LoadRequest(Path(path), Path(model_dir), str(self.device))
            # The callable that torch.export's loader returns.
            self.model = package.load(wanted).model.run
        elif path.endswith(".onnx"):
            self.model = setup_ort_session(path, self.map_location)
        elif path.endswith(".so") and self._aot_compiled():
            self.model = _load_aot_so(path, self.device)
        else:
            raise RuntimeError(
                f"No model weights could be loaded: {os.path.basename(path)} is no .pt, .pt2,"
                " .onnx, or a .so with pt2.export.aot_compile; .pth, .bin and .safetensors need a model"
                " file"
            )

    def _aot_compiled(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        return isinstance(pt2, dict) and bool((pt2.get("export") or {}).get("aot_compile"))

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        import torch

        try:
            return torch.jit.load(model_pt_path, map_location=self.device)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise RuntimeError(
                f"{os.path.basename(model_pt_path)} is not TorchScript, and without a model file it"
                f" must be: {reason}"
            ) from error

    def _load_pickled_model(
        self, model_dir: str, model_file: str, model_pt_path: str | None
    ) -> Any:
        """Instantiate the only class that the model file defines and fill it with the state dict."""
        definition = os.path.join(model_dir, model_file)
        if not os.path.isfile(definition):
            raise RuntimeError(f"Missing the model.py file: the archive has no {model_file}")
        module = import_module(os.path.splitext(model_file)[0])
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            raise ValueError(
                f"Expected only one class as model definition. {classes} in {model_file}"
            )
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(read_state(Path(model_pt_path)))
        return model

    def _compile(self) -> None:
        options = _compile_options(self.model_yaml_config.get("pt2"))
        if options is None:
            return
        import torch

        if isinstance(self.model, torch.jit.ScriptModule):
            logger.warning("pt2 has no effect: %s is a TorchScript file", self.model_pt_path)
        if "backend" in options and not check_valid_pt2_backend(options["backend"]):
            logger.warning("the model stays eager: unknown backend %r", options["backend"])
            return
        try:
            self.model = torch.compile(self.model, **options)
        except Exception as error:  # noqa: BLE001 - the eager model is the documented fallback
            logger.warning("the model stays eager: torch.compile failed: %s", error)

    @timed
    def preprocess(self, data: Any) -> Any:
        """Make one tensor of the batch.

        If every row has a list of numbers under `data` or `body`, these lists are the rows of the tensor. Anything
        else is passed to torch unchanged.
        """
        import torch

        if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
            values = [
                row.get("data") if row.get("data") is not None else row.get("body") for row in data
            ]
            if all(isinstance(value, list) for value in values):
                data = values
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *arguments: Any, **options: Any) -> Any:
        """Run the model on the tensor, without gradients."""
        import torch

        with torch.inference_mode():
            if _is_onnx_session(self.model):
                return _run_onnx(self.model, data)
            return self.model(data.to(self.device), *arguments, **options)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Return one list for each row."""
        rows: list[Any] = data.tolist()
        return rows

    def handle(self, data: Any, context: Any) -> Any:
        """Run the stages for one batch; an explain or describe request is handled separately."""
        start = time.monotonic()
        self.context = context
        if self._is_describe():
            output: Any = [self.describe_handle()]
        elif profiling.is_wanted():
            output, _ = self._infer_with_profiler(data)
        else:
            prepared = self.preprocess(data)
            if self._is_explain():
                output = self.explain_handle(prepared, data)
            else:
                output = self.postprocess(self.inference(prepared))
        milliseconds = round((time.monotonic() - start) * 1e3, 2)
        if context is not None and context.metrics is not None:
            context.metrics.add_time("HandlerTime", milliseconds, None, "ms")
        return output

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """Run the stages under torch's profiler; return the answer and the profiler."""
        if self.manifest is None and self.context is not None:
            self.manifest = self.context.manifest
        return profiling.profiled(self, data)

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> list[Any]:
        """Explain the first row by the handler's `get_insights`."""
        row = raw_data[0]
        target = 0
        if isinstance(row, dict):
            inputs = row.get("data") or row.get("body")
            target = row.get("target") or 0
        else:
            inputs = row
        insights = getattr(self, "get_insights", None)
        if insights is None:
            raise RuntimeError(
                f"{type(self).__name__} has no get_insights method, which explanations need; define "
                f"get_insights(self, tensor_data, raw_data, target)"
            )
        return insights(data_preprocess, inputs, target)  # type: ignore[no-any-return]

    def describe_handle(self) -> Any:
        """Return what `GET /models/M?customized=true` shows as `customizedMetadata`."""
        return None

    def get_device(self) -> Any:
        return self.device

    def _is_explain(self) -> bool:
        if self._header("explain"):
            self.explain = True
            return True
        return False

    def _is_describe(self) -> bool:
        return self._header("describe")

    def _header(self, name: str) -> bool:
        context = self.context
        if not getattr(context, "request_processor", None):
            return False
        return bool(context.get_request_header(0, name) == "True")


def _xla_device() -> Any:
    try:
        import torch_xla
    except ImportError:
        return None
    return torch_xla.device()


def _load_aot_so(path: str, device: Any) -> Any:
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)
    return torch._export.aot_load(path, device.type)


def _is_onnx_session(model: Any) -> bool:
    return type(model).__module__.startswith("onnxruntime")


def _run_onnx(session: Any, data: Any) -> Any:
    import torch

    feed = {session.get_inputs()[0].name: data.cpu().numpy()}
    results = [torch.from_numpy(array) for array in session.run(None, feed)]
    return results[0] if len(results) == 1 else results


def _compile_options(pt2: Any) -> dict[str, Any] | None:
    """Return the keywords for torch.compile from any of the forms of `pt2`, or None for eager.

    Raises:
        ValueError: The value has none of the known forms.
    """
    if pt2 is None:
        return None
    if isinstance(pt2, str):
        logger.warning("pt2 as a string is deprecated: use pt2.compile with a backend")
        return {"backend": pt2}
    if not isinstance(pt2, dict):
        raise ValueError(
            f"pt2 must be a mapping such as {{compile: {{enable: true}}}} or the name of a backend, not {pt2!r}"
        )
    if "compile" in pt2:
        options = dict(pt2["compile"] or {})
        return options if options.pop("enable", False) else None
    if "export" in pt2:
        return None
    if set(pt2) <= {"backend", "mode", "dynamic", "fullgraph", "options"}:
        logger.warning("pt2 with keywords of torch.compile is deprecated: use pt2.compile")
        return dict(pt2)
    raise ValueError(f"pt2 has the unknown keys {sorted(pt2)}: use pt2.compile")

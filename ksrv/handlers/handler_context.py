"""The implementation of a handler's context: loads the model, chooses the device, and has the running batch.

The compiled base class `RunContext` has the parts that change with each batch: the batch and the timings.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ksrv._native.batch.stages import RunContext
from ksrv.handlers.context import Context
from ksrv.handlers.devices.choice import choose_device, choose_onnx_device
from ksrv.handlers.devices.device import Device
from ksrv.handlers.devices.opening import open_device
from ksrv.handlers.diagnostics.metrics import Metrics
from ksrv.handlers.file_tensors import present
from ksrv.handlers.imports.folder_modules import HandlerError, ModelImporter, resolve
from ksrv.handlers.imports.initialize_lock import initialized_alone, initialized_beside_others
from ksrv.handlers.models import Models, Submit, refuse_calls
from ksrv.loaders.choice import CPU_ONLY, LOADERS, TORCH
from ksrv.loaders.eager import of_transformers
from ksrv.model.config import ModelConfig, ModelSource, OnnxSettings

if TYPE_CHECKING:
    from ksrv.handlers.batch import Batch
    from ksrv.handlers.postprocess.steps import Steps
    from ksrv.loaders.loaded import LoadedModel
    from ksrv.request import ExecutorInputs

log = logging.getLogger("ksrv.handlers")


class HandlerContext(RunContext, Context):
    """The context that the runner makes for one handler object.

    Args:
        threads: CPU threads that the handler may use; 0 for the default of the framework.
        metrics: Takes the values that the handler reports.
        make_batch: Makes the batch as handlers see it.

    Attributes:
        source: The version on disk.
        modules: The modules of the model's folders.
        passes_inputs: Whether the handler passes the declared inputs on to the model file.
        passes_outputs: Whether the handler answers with the outputs of the model file.
        steps: The steps of `postprocess:`, or None.
    """

    passes_inputs = True
    passes_outputs = True
    steps: Steps | None = None

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        *,
        instance: int = 0,
        threads: int = 0,
        metrics: Metrics | None = None,
        make_batch: Callable[[ExecutorInputs], Batch] | None = None,
        submit: Submit = refuse_calls,
    ) -> None:
        RunContext.__init__(self, make_batch)
        Context.__init__(self, source, config, instance=instance, threads=threads, metrics=metrics)
        self.submit = submit
        self.source = source
        self.modules = ModelImporter(
            source.name,
            (source.folder, source.root),
            version=source.version,
            instance=instance,
            alone=source.alone,
            sources={} if source.loaded is None else source.loaded.sources,
        )

    @cached_property
    def models(self) -> Models:
        """See `Context.models`."""
        return Models(self.submit, self.running_inputs)

    @cached_property
    def device(self) -> str:
        """See `Context.device`."""
        wanted, runtime = self.config.device, self._runtime
        if runtime in CPU_ONLY:
            return "cpu" if wanted in ("auto", "openvino") else wanted
        if wanted.startswith(("tensorrt", "openvino")) and runtime != "onnx":
            raise HandlerError(f"device: {wanted} is for a .onnx file; name one under model:")
        choose = choose_onnx_device if runtime == "onnx" else choose_device
        # TensorRT runs on the devices of CUDA.
        wanted = wanted.replace("tensorrt", "cuda")
        return choose(wanted, self.source.first_device + self.instance)

    @cached_property
    def opened_device(self) -> Device:
        """The interface to the device, opened on first use."""
        return open_device(self.device)

    @property
    def _runtime(self) -> str:
        """The name of the loader for the model file; "" without a file."""
        suffix = self.model_file.suffix if self.model_file is not None else ""
        if suffix == ".onnx" and self.config.device == "openvino":
            return "openvino"
        return LOADERS.get(suffix, "")

    def apply_torch_settings(self) -> None:
        """Set torch's process-wide settings: threads, and the matmul precision of model.yaml.

        torch is not imported for a model that does not use it.
        """
        precision = self.config.matmul_precision
        uses_torch = self._runtime in TORCH
        if not (uses_torch or precision or "torch" in sys.modules):
            return
        try:
            import torch
        except ModuleNotFoundError:
            return  # the loader says which extra is missing

        if precision is not None:
            torch.set_float32_matmul_precision(precision)
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    def load_model(self) -> LoadedModel | None:
        """See `Context.load_model`."""
        if self.loaded is not None:
            return self.loaded
        from ksrv.loaders.choice import load_model
        from ksrv.loaders.loaded import LoadRequest, ModelLoadError

        if self.config.onnx != OnnxSettings() and self._runtime != "onnx":
            raise HandlerError(
                "onnx: in model.yaml is for a .onnx file; name one under model:"
                f"{', and another device: than openvino' if self._runtime else ''}"
            )
        if self.model_file is None and self.config.model_class is None:
            if self.config.openvino.properties:
                raise HandlerError("openvino: needs a model file, and the model has none")
            return None
        in_file = {new: old for old, new in self.config.rename.items()}
        model_class = self._model_class()
        # A module that transformers makes has its weights already, so the loader gets no file to fill it from.
        has_weights = model_class is not None and self.config.model_class is None
        request = LoadRequest(
            path=None if has_weights else self.model_file,
            root=self.source.root,
            device=self.device.replace("cuda", "tensorrt")
            if self.config.device.startswith("tensorrt")
            else self.device,
            threads=self.threads,
            model_class=model_class,
            inputs=tuple(
                replace(spec, name=in_file.get(spec.name, spec.name)) for spec in self.spec.inputs
            ),
            outputs=tuple(in_file.get(name, name) for name in self._needed_outputs()),
            passes_inputs=self.passes_inputs,
            runtime=self.config.runtime
            or ("ksrv.loaders.openvino" if self._runtime == "openvino" else ""),
            properties=self.config.openvino.properties,
            dialect=self.config.dialect,
            onnx=self.config.onnx,
        )
        with initialized_beside_others():
            try:
                self.loaded = load_model(request)
            except ModelLoadError as error:
                if self._runtime != "onnx" or self.config.device != "auto" or self.device == "cpu":
                    raise
                # Only the load shows whether the GPU's libraries fit this ONNX Runtime.
                log.warning("%s: on the CPU, because %s", self.model_file, error)
                self.device = "cpu"
                self.loaded = load_model(replace(request, device="cpu"))
        self.loaded = present(self.loaded, self)
        if self.loaded.note:
            log.warning("%s: %s", self.model_file, self.loaded.note)
        return self.loaded

    def _needed_outputs(self) -> tuple[str, ...]:
        """Return the outputs of the model file that the answers or the states need; empty for all outputs."""
        served = self.config.served_outputs
        if not self.passes_outputs:
            if served:
                raise HandlerError(
                    f"outputs: {served[0]!r} is a name alone, and this handler makes the outputs itself; write "
                    f"{{name: {served[0]}, datatype: ..., shape: [...]}}"
                )
            return ()
        named = served or tuple(spec.name for spec in self.spec.outputs)
        return (*named, *(state.output for state in self.config.state)) if named else ()

    def _model_class(self) -> Callable[[], Any] | None:
        """Return the function that makes the torch module: of `class:`, or transformers for a .safetensors file."""
        found: Any
        if self.config.model_class is not None:
            found = resolve(self.config.model_class, self.modules)
        elif self.model_file is not None and self.model_file.suffix == ".safetensors":
            found = partial(of_transformers, self.model_file)
        else:
            return None
        if not callable(found):
            raise HandlerError(f"{self.config.model_class} is a {type(found).__name__}, no class")

        def make() -> Any:
            with initialized_alone(self.model_name, self.config.start_timeout_s):
                return found()

        return make

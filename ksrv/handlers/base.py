"""`BaseHandler`: four stages around a model. A subclass may override each alone.

`handle` is the template method: preprocess, then inference or explain, then postprocess. Every
attribute has a class-level default, so a subclass need not call `super().__init__()`. The argument of `postprocess` is
positional, so that a subclass may choose another name for it. The arguments of the other stages have fixed names: if a
subclass writes no type hint, editors take the type from the argument of that name in this class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from ksrv._native.batch.stages import infer_and_postprocess
from ksrv.errors import InferenceError
from ksrv.handlers.batch import Batch, utf8_texts
from ksrv.handlers.compile import compile_model, graphed_model
from ksrv.handlers.context import Context
from ksrv.handlers.imports.initialize_lock import initialized_beside_others
from ksrv.handlers.streaming.streams import postprocessed
from ksrv.loaders.device import torch_device
from ksrv.model.spec import ModelSpec
from ksrv.torch_interop import imported_torch

_LIKE_INFERENCE = ("infer", "predict", "forward", "__call__")
"""The names of the inference method in other frameworks."""


class BaseHandler:
    """Serves a model; override one stage and keep the rest.

    Attributes:
        context: The model's facts and the running batch.
        model: The model that the loader returned; called with the inputs.
        labels: Class labels by index, or None.
        inputs: A subclass's inputs by name, as tensor types such as `Float32[1000]`, or None.
        outputs: A subclass's outputs, likewise.
    """

    context: Context = None  # type: ignore[assignment]  # set before any stage runs
    model: Any = None
    # Calls an `inference` with Python's own types, see `ksrv/handlers/declared/rows.py`.
    row_function: Any = None
    labels: Any = None  # a tuple of texts; handlers put arrays there too
    inputs: Mapping[str, Any] | None = None
    outputs: Mapping[str, Any] | None = None
    _device: Any = None

    @property
    def device(self) -> Any:
        """The device: a `torch.device` if torch is imported, otherwise the name."""
        if self._device is None:
            name = self.context.device
            self._device = torch_device(name) if "torch" in sys.modules else name
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        self._device = device

    def initialize(self, context: Context) -> None:
        """Load the model and what belongs to it.

        Args:
            context: The model's facts.
        """
        self.context = context
        self.labels = context.labels
        with initialized_beside_others():
            loaded = context.load_model()
            if loaded is not None:
                self.model = graphed_model(compile_model(loaded, context), loaded, context)

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare inputs and outputs that model.yaml leaves open; called after `initialize`.

        Args:
            spec: The inputs and outputs that model.yaml declares.

        Returns:
            The spec, with the tensors that this handler knows. By default it is unchanged; tensors that stay open
            are taken from the model file, if the handler keeps the default stages.
        """
        return spec

    def preprocess(self, batch: Batch) -> Any:
        """Turn the batch into what `inference` takes.

        Args:
            batch: The inputs and their requests.

        Returns:
            One value, or a mapping that is passed to `inference` as keywords. By default the only
            input, or all inputs by name; torch tensors where the model is torch, else arrays.
        """
        by_name = len(batch.names) != 1 or batch.optional
        absent = dict.fromkeys(batch.absent)
        if not self._takes_tensors():
            names = batch.names
            found = {name: self._array(batch, name) for name in names}
            return found | absent if by_name else found[names[0]]
        named = {
            name: batch[name] if batch.datatype(name) == "BYTES" else batch.tensor(name)
            for name in batch
        }
        return named | absent if by_name else named.popitem()[1]

    def inference(self, /, *inputs: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            inputs: The value that `preprocess` returned.
            named: The entries of that value, if it is a mapping.

        Returns:
            The model's result.
        """
        if self.model is None:
            raise RuntimeError(missing_inference(self))
        return self.model(*inputs, **named)

    def postprocess(self, outputs: Any, /) -> Any:
        """Turn the outputs of the model into the answer.

        Args:
            outputs: The value that `inference` returned.

        Returns:
            A mapping of output names to arrays or tensors, one array, or a list with one value for
            each row. By default the outputs as they are.
        """
        return outputs

    def explain(self, batch: Batch, inputs: Any) -> Any:
        """Explain instead of infer.

        Args:
            batch: The inputs and their requests.
            inputs: The value that `preprocess` returned.

        Returns:
            The same kinds of values as `postprocess`.

        Raises:
            InferenceError: This handler has no explanations.
        """
        raise InferenceError(f"the model {self.context.model_name} has no explanations; use infer")

    def handle(self, batch: Batch, context: Context) -> Any:
        """Run the stages on one batch.

        Args:
            batch: The batch.
            context: The handler's context.

        Returns:
            The value that `postprocess` or `explain` returned.
        """
        context.stage = "preprocess"
        began = perf_counter_ns()
        inputs = self.preprocess(batch)
        now = perf_counter_ns()
        times = context.timings
        times["preprocess"] = times.get("preprocess", 0) + now - began
        if batch.explain:
            context.stage = "explain"
            result = self.explain(batch, inputs)
            times["explain"] = times.get("explain", 0) + perf_counter_ns() - now
        else:
            result = infer_and_postprocess(self, inputs, context, now)
        context.stage = "handle"
        return result

    def _stream(self, outputs: Any) -> Any:
        """Return the result of the stages if `inference` returned a generator or a coroutine.

        Called by the compiled `infer_and_postprocess`.
        """
        return postprocessed(outputs, self.postprocess)

    def close(self) -> None:
        """Free the resources of `initialize`. Called once, when the model is unloaded."""

    def _array(self, batch: Batch, name: str) -> Any:
        """Return an input for a model without torch: an array, or texts if the model takes texts."""
        loaded = self.context.loaded
        if loaded is not None and loaded.takes_texts and batch.datatype(name) == "BYTES":
            return utf8_texts(batch, name)
        return batch[name]

    def _takes_tensors(self) -> bool:
        loaded = self.context.loaded
        if loaded is not None:
            return loaded.is_torch
        torch = imported_torch()
        return torch is not None and isinstance(self.model, torch.nn.Module)


def missing_inference(handler: BaseHandler) -> str:
    """Return the error for a handler that has neither a model nor an `inference`."""
    name = type(handler).__name__
    alike = next((name for name in _LIKE_INFERENCE if callable(getattr(handler, name, None))), None)
    remedy = (
        f"rename {name}.{alike} to inference"
        if alike
        else f"write the method inference in {name}, or name a model file under model: in model.yaml"
    )
    return f"{name} has no method inference, and the model has no file to call; {remedy}"

"""The interface of loaders: each takes a `LoadRequest` and returns a `LoadedModel`. Also the errors that they share."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ksrv.model.config import OnnxSettings
from ksrv.model.spec import TensorSpec


class ModelLoadError(Exception):
    """A model file that cannot be loaded; its text names the file and the expected content."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The file to load, with the settings for its loader.

    Attributes:
        path: The model file, or None for a class that is served with its fresh weights.
        root: The folder that every file of the model must be in.
        device: "cpu", "cuda:N", "mps", "xpu:N" or "xla".
        threads: CPU threads for this instance; 0 leaves the framework's choice.
        model_class: Makes the module that the weights of a state_dict fill; None for other files.
        inputs: The declared inputs, in order, by the names in the file.
        outputs: The outputs that are needed, by the names in the file. Empty, or with a name that the file does not
            have, for all outputs.
        passes_inputs: Whether the handler passes the declared inputs to the model unchanged, so that the model must
            take their shapes.
        runtime: The Python module that loads the file, whatever the suffix; "" chooses the loader by the suffix.
        properties: Properties of the runtime that reads the file.
        dialect: `ModelConfig.dialect`, for a dialect's loader.
        onnx: How ONNX Runtime runs the file.
    """

    path: Path | None
    root: Path
    device: str = "cpu"
    threads: int = 0
    model_class: Callable[[], Any] | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[str, ...] = ()
    passes_inputs: bool = True
    runtime: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    dialect: Mapping[str, Any] = field(default_factory=dict)
    onnx: OnnxSettings = field(default_factory=OnnxSettings)

    def is_needed(self, output: str, known: Collection[str]) -> bool:
        """Whether the model must return an output.

        Args:
            known: The names of all outputs of the file.
        """
        return not set(known).issuperset(self.outputs) or output in (self.outputs or known)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        model: The handler's `self.model`: callable with the inputs.
        is_torch: Whether it takes torch tensors on the handler's device, rather than arrays.
        platform: The name that model metadata shows.
        inputs: The inputs that the file declares; may be empty.
        outputs: The outputs that the file declares; may be empty.
        left_out: The names of the outputs of the file that the model does not return, because none is needed.
        note: A sentence to log when the model is loaded, or None.
        forget: Resets the state that the model keeps from run to run. Called before each batch; None if the model has
            no state.
        takes_texts: Whether BYTES inputs must be UTF-8 texts.
    """

    model: Any
    is_torch: bool
    platform: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    left_out: tuple[str, ...] = ()
    note: str | None = None
    forget: Callable[[], None] | None = None
    takes_texts: bool = False


def torch_file(request: LoadRequest, kind: str) -> Path:
    """Return the file of a request, and check that torch can be imported.

    Args:
        kind: The kind of the file, for the error.

    Raises:
        ModelLoadError: No file is given, or torch is missing.
    """
    if request.path is None:
        raise ModelLoadError(f"{kind} needs a model file")
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise missing_dependency("torch", f"the model {request.path}") from None
    return request.path


def missing_dependency(module: str, purpose: str) -> ModelLoadError:
    """Return the error of a framework that is not installed.

    Args:
        module: The module that could not be imported.
        purpose: The use that the framework was needed for.
    """
    return ModelLoadError(f"{purpose} needs {module}: pip install {module}")


def short(error: Exception) -> str:
    """Return an error's text in one line of at most 400 characters, without its full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(". ") if len(text) <= 400 else text[:400] + "..."

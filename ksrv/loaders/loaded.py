"""The request to a loader and the model that it returns, the same for every framework."""

from collections.abc import Callable, Mapping
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
        model_class: For a state_dict: makes the module to fill.
        inputs: The declared inputs, in order; names for positional calls come from them.
        passes_inputs: Whether the handler passes the declared inputs on to the file.
        runtime: The module that loads the file whatever its suffix; "" chooses by the suffix.
        properties: Properties of the runtime that reads the file.
        dialect: `ModelConfig.dialect`, for the loader that knows it.
        onnx: How ONNX Runtime runs the file.
    """

    path: Path | None
    root: Path
    device: str = "cpu"
    threads: int = 0
    model_class: Callable[[], Any] | None = None
    inputs: tuple[TensorSpec, ...] = ()
    passes_inputs: bool = True
    runtime: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    dialect: Mapping[str, Any] = field(default_factory=dict)
    onnx: OnnxSettings = field(default_factory=OnnxSettings)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        model: The handler's `self.model`: callable with the inputs.
        is_torch: Whether it takes torch tensors on the handler's device, rather than arrays.
        platform: The name that model metadata shows.
        inputs: The inputs that the file declares; empty where it declares none.
        outputs: The outputs that the file declares; empty where it declares none.
        note: One sentence that is logged when the model is loaded, or None.
        forget: Called before each batch; has a model that keeps a state from run to run forget it. Or None.
        takes_texts: Whether its inputs of BYTES are texts, which have to be UTF-8.
    """

    model: Any
    is_torch: bool
    platform: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    note: str | None = None
    forget: Callable[[], None] | None = None
    takes_texts: bool = False


def torch_file(request: LoadRequest, kind: str) -> Path:
    """Return the file that a loader of torch is to read, once torch is imported.

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

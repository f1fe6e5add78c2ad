"""A model's calls to its server: ask whether a model is ready, load a model, unload a model."""

from collections.abc import Mapping

from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.dialects.triton.python_backend.api.model import running_model
from ksrv.errors import KsrvError
from ksrv.handlers.models import SERVER
from ksrv.request import InferRequest, Parameter


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Tell whether a model serves.

    Args:
        model_version: The version of the model; "" for any version.

    Raises:
        TritonModelException: The version is not a number, or no batch runs.
    """
    if model_version and not (model_version.isascii() and model_version.isdigit()):
        raise TritonModelException(
            f"failed to get model version from specified version string {model_version!r}, version should be an "
            f"integral value > 0"
        )
    parameters: dict[str, Parameter] = {
        "call": "ready",
        "model": model_name,
        "version": model_version,
    }
    return _ask("check model readiness", parameters)


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model of the server's repository, or load it again.

    Args:
        config: A configuration as JSON that replaces its config.pbtxt; "" for its config.pbtxt.
        files: Files that replace the model's, which ksrv refuses: code and weights come from the repository.

    Raises:
        TritonModelException: The model cannot be loaded, or calls may not load models.
    """
    if files is not None and not isinstance(files, Mapping):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    if files:
        raise TritonModelException(
            f"Failed to load model: {model_name!r} was given files, and ksrv loads the files in its repository"
        )
    _ask("load model", {"call": "load", "model": model_name, "config": config})


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model of the server.

    Args:
        unload_dependents: Ignored: ksrv unloads only the model itself.

    Raises:
        TritonModelException: The model is unknown, or calls may not unload models.
    """
    _ask("unload model", {"call": "unload", "model": model_name})


def _ask(action: str, parameters: Mapping[str, Parameter]) -> bool:
    """Send a call to the server as a request for the model `SERVER`; the worker carries it out.

    Args:
        action: The action, for error texts.
    """
    model = running_model()
    if model is None or not model.may_call:
        raise TritonModelException(
            f"Failed to {action}: the server is asked from execute() alone, not from initialize() or finalize()"
        )
    try:
        # None: the call belongs to no batch, so it has neither a batch's deadline nor its ids.
        answer = model.submit(InferRequest(SERVER, parameters=parameters), None).wait()
    except KsrvError as error:
        raise TritonModelException(f"Failed to {action}: {error.message}") from None
    return bool(answer.parameters.get("answer"))

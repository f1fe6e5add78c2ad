"""`ts.torch_handler.densenet_handler`: an older handler that takes tensors as `torch.save` writes them."""

import io
from typing import Any

from ksrv.dialects.torchserve.api.handlers.base_handler import BaseHandler


class DenseNetHandler(BaseHandler):
    """Runs the model on a batch of saved tensors."""

    def preprocess(self, data: Any) -> Any:
        """Return the rows' tensors, each saved by `torch.save`, as one."""
        import torch

        bodies = [row.get("data") or row.get("body") for row in data]
        return torch.stack([torch.load(io.BytesIO(body)) for body in bodies])

    def postprocess(self, data: Any) -> list[Any]:
        """Return the model's answer as one item, as TorchServe's handler does."""
        return [data]

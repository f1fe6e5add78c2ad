"""A handler that never waits for its device: tensors are returned where they are."""

import torch

from ksrv import BaseHandler


class Embedder(BaseHandler):
    """Answers unit vectors, and the lengths that they had."""

    def postprocess(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Divide by the length, on the device; both tensors are fetched together."""
        length = outputs.norm(dim=1)
        return {"embedding": outputs / length[:, None], "length": length}

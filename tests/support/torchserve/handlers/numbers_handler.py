"""Overrides the stages before and after the model, and reports what the base class has set up."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Numbers(BaseHandler):
    def preprocess(self, data):
        values = [row.get("body") if row.get("data") is None else row.get("data") for row in data]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def postprocess(self, found):
        model = self.model
        return [
            {
                "y": row,
                "batch": len(found),
                "labels": self.mapping,
                "class": type(model).__name__,
                "training": model.training,
                "device": str(self.device),
            }
            for row in found.tolist()
        ]

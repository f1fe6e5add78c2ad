"""Numbers in, numbers out, with what the base class has set up; the recorded answers have this form."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Recorded(BaseHandler):
    def preprocess(self, data):
        values = [row.get("body") if row.get("data") is None else row.get("data") for row in data]
        values = [value["x"] if isinstance(value, dict) else value for value in values]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def postprocess(self, found):
        about = {
            "device": str(self.device),
            "n": len(found),
            "map": self.mapping,
            "cls": type(self.model).__name__,
            "training": getattr(self.model, "training", None),
        }
        return [{"y": row, **about} for row in found.tolist()]

"""One stage with the decorator and one without."""

import torch
from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler


class Profiled(BaseHandler):
    @timed
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, found):
        return [{"y": row} for row in found.tolist()]

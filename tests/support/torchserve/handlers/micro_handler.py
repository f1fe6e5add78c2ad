"""Micro-batching, installed where TorchServe's examples install it."""

import time

import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Micro(BaseHandler):
    def __init__(self):
        super().__init__()
        threads = {"preprocess": 2, "inference": 2, "postprocess": 1}
        self.handle = MicroBatching(self, micro_batch_size=1, parallelism=threads)

    def preprocess(self, data):
        values = [row["body"] for row in data]
        time.sleep(0.05 if values[0][0] == 0 else 0)  # the first row is overtaken by the others
        return torch.tensor(values, dtype=torch.float32)

    def postprocess(self, found):
        return [{"y": row, "n": len(found)} for row in found.tolist()]

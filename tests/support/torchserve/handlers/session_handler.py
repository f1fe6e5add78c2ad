"""Runs an ONNX file itself."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Session(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def inference(self, x):
        name = self.model.get_inputs()[0].name
        return torch.from_numpy(self.model.run(None, {name: x.numpy()})[0])

    def postprocess(self, found):
        session = self.model
        return [
            {
                "y": row,
                "class": type(session).__name__,
                "providers": session.get_providers(),
                "threads": session.get_session_options().intra_op_num_threads,
            }
            for row in found.tolist()
        ]

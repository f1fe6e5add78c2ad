"""Written for the KServe v2 envelope: every item is {name, shape, datatype, data}."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Typed(BaseHandler):
    def preprocess(self, data):
        self.keys = [sorted(item) for item in data]
        assert [item["name"] for item in data] == self.context.input_names
        rows = [torch.tensor(item["data"], dtype=torch.float32).reshape(-1)[:4] for item in data]
        return torch.stack(rows).to(self.device)

    def postprocess(self, found):
        assert all(keys == ["data", "datatype", "name", "shape"] for keys in self.keys)
        return found.tolist()

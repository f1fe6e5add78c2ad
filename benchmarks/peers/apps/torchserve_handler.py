"""A handler of TorchServe for every workload; the model's name says which."""

from typing import Any

import numpy as np
from ts.handler_utils.utils import send_intermediate_predict_response
from work import OnnxModel, first_ten, pictures, split_pictures, words


class Work:
    def initialize(self, context: Any) -> None:
        self.name = context.manifest["model"]["modelName"]
        onnx = {"w5": "network", "w6": "forest"}.get(self.name)
        self.model = OnnxModel(onnx, threads=2) if onnx else None

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        bodies = [row.get("body") or row.get("data") for row in data]
        if self.name == "w7":
            ids = context.request_ids
            for word in words():
                send_intermediate_predict_response([f"data: {word}\n\n"], ids, "ok", 200, context)
            return [""]
        if self.name == "w6":
            return [{"predictions": self.model.run(np.array(body["instances"], np.float32)).tolist()}
                    for body in bodies]  # fmt: skip
        if self.name == "w5":
            x = np.frombuffer(b"".join(bodies), np.float32).reshape(-1, 3, 224, 224)
            return [row.tobytes() for row in self.model.run(x)]
        if self.name == "w3":
            return [pictures(split_pictures(bytes(body))).tobytes() for body in bodies]
        tensors = [np.frombuffer(body, np.float32) for body in bodies]
        if self.name == "w2":
            tensors = [first_ten(x.reshape(1, 224, 224, 3)) for x in tensors]
        return [x.tobytes() for x in tensors]

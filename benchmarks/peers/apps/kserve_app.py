"""KServe's Python server: Open Inference Protocol over REST and gRPC. It joins no requests, so W5 runs one by one."""

import logging
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from work import OnnxModel, first_ten, pictures


class Work(Model):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.onnx = {"w5": "network", "w6": "forest"}.get(name)
        self.model = OnnxModel(self.onnx, threads=2) if self.onnx else None
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        if not isinstance(payload, InferRequest):  # JSON instances of V1: only W6 is called by it
            rows = np.array(payload["instances"], np.float32)
            return {"predictions": self.model.run(rows).tolist()}
        x = payload.inputs[0].as_numpy()
        if self.model:
            y = self.model.run(x)
        elif self.name == "w3":
            y = pictures(list(x))
        else:
            y = first_ten(x) if self.name == "w2" else x
        output = InferOutput("y", list(y.shape), "FP32")
        # Binary unless the request names outputs and does not ask for binary; gRPC always has raw contents.
        binary = payload.request_outputs is None or payload.use_binary_outputs
        output.set_data_from_numpy(y, binary_data=bool(binary) or payload.from_grpc)
        return InferResponse(payload.id or "", self.name, [output], from_grpc=payload.from_grpc,
                             use_binary_outputs=True)  # fmt: skip


if __name__ == "__main__":  # kserve itself reads the command line
    server = ModelServer(enable_latency_logging=False)
    logging.disable(logging.INFO)  # KServe would log each request three times
    server.start([Work(f"w{number}") for number in range(1, 7)])

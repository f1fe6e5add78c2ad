"""LitServe: an API for each workload, LitServe's own batching and streaming. It reads JSON, so tensors are base64."""

import base64
import os
import sys
from collections.abc import Iterator
from typing import Any

import litserve
import numpy as np
from work import OnnxModel, first_ten, padded, pictures, split_pictures, words


class Tensors(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.network = None

    def decode_request(self, request: dict[str, Any]) -> bytes:
        return base64.b64decode(request["tensor"])

    def encode_response(self, output: bytes) -> dict[str, str]:
        return {"tensor": base64.b64encode(output).decode()}


class Echo(Tensors):
    def predict(self, body: bytes) -> bytes:
        return np.frombuffer(body, np.float32).tobytes()


class TenValues(Tensors):
    def predict(self, body: bytes) -> bytes:
        return first_ten(np.frombuffer(body, np.float32).reshape(1, 224, 224, 3)).tobytes()


class Pictures(Tensors):
    def predict(self, body: bytes) -> bytes:
        return pictures(split_pictures(body)).tobytes()


class Classify(Tensors):
    def setup(self, device: str) -> None:
        self.network = OnnxModel("network", threads=2)

    def batch(self, bodies: list[bytes]) -> np.ndarray:
        return np.frombuffer(b"".join(bodies), np.float32).reshape(-1, 3, 224, 224)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.network.run(x)

    def unbatch(self, output: np.ndarray) -> list[bytes]:
        return [row.tobytes() for row in output]


class Embed(Tensors):
    def setup(self, device: str) -> None:
        self.text = OnnxModel("text", threads=2)

    def batch(self, bodies: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        return padded([np.frombuffer(body, np.int64)[None] for body in bodies])

    def predict(self, rows: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return self.text.run(*rows)

    def unbatch(self, output: np.ndarray) -> list[bytes]:
        return [row.tobytes() for row in output]


class Forest(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.forest = OnnxModel("forest")

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        return np.array(request["instances"], np.float32)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.forest.run(x)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"predictions": output.tolist()}


class Words(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    def decode_request(self, request: dict[str, Any]) -> str:
        return str(request["prompt"])

    def predict(self, prompt: str) -> Iterator[str]:
        yield from words()

    def encode_response(self, output: Iterator[str]):  # its annotation would be the response model
        for word in output:
            yield f"data: {word}\n\n"


if __name__ == "__main__":
    server = litserve.LitServer(
        [
            Echo(api_path="/w1"),
            TenValues(api_path="/w2"),
            Pictures(api_path="/w3"),
            Echo(api_path="/w4"),
            Classify(api_path="/w5", max_batch_size=8, batch_timeout=0.001),
            Forest(api_path="/w6"),
            Embed(api_path="/w8", max_batch_size=8, batch_timeout=0.001),
            Words(api_path="/w7", stream=True),
        ],
        accelerator="cpu",
        workers_per_device=1,
        timeout=60,
        max_payload_size=200 << 20,
    )
    tls = {}
    if len(sys.argv) > 2:
        tls = {"ssl_keyfile": sys.argv[2], "ssl_certfile": sys.argv[3]}
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=len(os.sched_getaffinity(0)),
        generate_client_file=False, log_level="warning", access_log=False, **tls,
    )  # fmt: skip

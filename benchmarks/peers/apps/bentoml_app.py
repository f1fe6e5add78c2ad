"""BentoML: tensors as raw bytes through a FastAPI app that the service mounts, BentoML's own batching for W5."""

from collections.abc import Iterator
from typing import Any

import bentoml
import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from work import OnnxModel, first_ten, pictures, split_pictures, words

app = FastAPI()


def octets(array: np.ndarray) -> Response:
    return Response(array.tobytes(), media_type="application/octet-stream")


@bentoml.service(workers=1, traffic={"timeout": 60})
class Network:
    def __init__(self) -> None:
        self.network = OnnxModel("network", threads=2)

    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=5000)
    def run(self, x: np.ndarray) -> np.ndarray:
        return self.network.run(x)


@bentoml.service(workers=2, traffic={"timeout": 60})
@bentoml.asgi_app(app)
class Work:
    network = bentoml.depends(Network)

    def __init__(self) -> None:
        self.forest = OnnxModel("forest")

    @app.post("/w1")
    @app.post("/w4")
    async def echo(self, request: Request) -> Response:
        return octets(np.frombuffer(await request.body(), np.float32))

    @app.post("/w2")
    async def ten_values(self, request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32)
        return octets(first_ten(x.reshape(1, 224, 224, 3)))

    @app.post("/w3")
    async def decode(self, request: Request) -> Response:
        return octets(pictures(split_pictures(await request.body())))

    @app.post("/w5")
    async def classify(self, request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32).reshape(1, 3, 224, 224)
        return octets(await self.network.to_async.run(x))

    @app.post("/w6")
    async def predict(self, request: Request) -> dict[str, Any]:
        rows = (await request.json())["instances"]
        return {"predictions": self.forest.run(np.array(rows, np.float32)).tolist()}

    @app.post("/w7")
    async def generate(self, request: Request) -> StreamingResponse:
        await request.json()

        def events() -> Iterator[str]:
            for word in words():
                yield f"data: {word}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.get("/ready")
    async def ready(self) -> dict[str, bool]:
        return {"ready": True}

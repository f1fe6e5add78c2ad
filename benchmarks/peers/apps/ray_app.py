"""Ray Serve: a FastAPI ingress with two replicas, Ray's own batching."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from ray import serve
from work import OnnxModel, first_ten, pictures, split_pictures, words

app = FastAPI()


def octets(array: np.ndarray) -> Response:
    return Response(array.tobytes(), media_type="application/octet-stream")


@serve.deployment(num_replicas=2, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Work:
    def __init__(self) -> None:
        self.network, self.forest = OnnxModel("network"), OnnxModel("forest")

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

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
    async def run_batch(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.network.run(np.concatenate(rows)))

    @app.post("/w5")
    async def classify(self, request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32).reshape(1, 3, 224, 224)
        return octets(await self.run_batch(x))

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


if __name__ == "__main__":
    signals = signal.SIGTERM, signal.SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # A busy machine may need more than Ray's 30 s for a node, and than its five seconds for a proxy.
    os.environ |= {
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    }
    environment = {"env_vars": {name: os.environ[name] for name in ("PYTHONPATH", "WORK_MODELS")}}
    ray.init(include_dashboard=False, runtime_env=environment, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Work.bind(), route_prefix="/")
    signal.sigwait(signals)
    ray.shutdown()

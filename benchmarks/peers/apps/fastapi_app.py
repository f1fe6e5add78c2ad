"""FastAPI and uvicorn: tensors as raw bytes, a batcher of twenty-five lines, work on the thread pool."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from work import OnnxModel, first_ten, padded, pictures, split_pictures, words


class Batcher:
    def __init__(self, run: Callable[[list[np.ndarray]], np.ndarray]) -> None:
        self._run, self._runner, self._running = run, ThreadPoolExecutor(1), False
        self._waiting: list[tuple[np.ndarray, asyncio.Future[np.ndarray]]] = []

    async def submit(self, x: np.ndarray) -> np.ndarray:
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting.append((x, future))
        if not self._running:
            await self._run_batches()
        return await future

    async def _run_batches(self) -> None:
        self._running = True
        while self._waiting:
            batch = self._waiting[:8]
            del self._waiting[:8]
            loop, rows = asyncio.get_running_loop(), [x for x, _ in batch]
            answers = await loop.run_in_executor(self._runner, self._run, rows)
            for answer, (_, future) in zip(answers, batch, strict=True):
                future.set_result(answer)
        self._running = False


app = FastAPI()
network, forest, text = OnnxModel("network"), OnnxModel("forest"), OnnxModel("text")
images = Batcher(lambda rows: network.run(np.concatenate(rows)))
sentences = Batcher(lambda rows: text.run(*padded(rows)))


def octets(array: np.ndarray) -> Response:
    return Response(array.tobytes(), media_type="application/octet-stream")


@app.post("/w1")
@app.post("/w4")
async def echo(request: Request) -> Response:
    return octets(np.frombuffer(await request.body(), np.float32))


@app.post("/w2")
async def ten_values(request: Request) -> Response:
    x = np.frombuffer(await request.body(), np.float32)
    return octets(first_ten(x.reshape(1, 224, 224, 3)))


@app.post("/w3")
async def decode(request: Request) -> Response:
    body = await request.body()
    return octets(await run_in_threadpool(lambda: pictures(split_pictures(body))))


@app.post("/w5")
async def classify(request: Request) -> Response:
    x = np.frombuffer(await request.body(), np.float32).reshape(1, 3, 224, 224)
    return octets(await images.submit(x))


@app.post("/w8")
async def embed(request: Request) -> Response:
    ids = np.frombuffer(await request.body(), np.int64)[None]
    return octets(await sentences.submit(ids))


@app.post("/w6")
async def predict(request: Request) -> dict[str, Any]:
    rows = (await request.json())["instances"]
    return {"predictions": forest.run(np.array(rows, np.float32)).tolist()}


@app.post("/w7")
async def generate(request: Request) -> StreamingResponse:
    await request.json()

    async def events() -> AsyncIterator[str]:
        for word in words():
            yield f"data: {word}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/ready")
async def ready() -> dict[str, bool]:
    return {"ready": True}

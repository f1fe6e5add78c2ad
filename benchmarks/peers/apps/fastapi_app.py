"""FastAPI and uvicorn: tensors as raw bytes, a batcher of twenty lines, work on the thread pool."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from work import OnnxModel, first_ten, pictures, split_pictures, words

app = FastAPI()
network, forest = OnnxModel("network"), OnnxModel("forest")
runner = ThreadPoolExecutor(1)
waiting: list[tuple[np.ndarray, asyncio.Future[np.ndarray]]] = []
running = False


async def run_batches() -> None:
    global running
    running = True
    while waiting:
        batch = waiting[:8]
        del waiting[:8]
        rows = np.concatenate([x for x, _ in batch])
        answers = await asyncio.get_running_loop().run_in_executor(runner, network.run, rows)
        for answer, (_, future) in zip(answers, batch, strict=True):
            future.set_result(answer)
    running = False


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
    future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
    waiting.append((x, future))
    if not running:
        await run_batches()
    return octets(await future)


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

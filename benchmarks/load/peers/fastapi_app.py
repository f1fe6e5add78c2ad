"""A plain FastAPI app around the batcher, for uvicorn."""

import asyncio
from typing import Any

from batcher import Batcher
from fastapi import FastAPI, Request, Response

app = FastAPI()
batcher = Batcher()


@app.post("/infer")
async def infer(request: Request) -> Response:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    body = await request.body()
    batcher.submit(body, lambda answer: loop.call_soon_threadsafe(future.set_result, answer))
    return Response(await future, media_type="application/octet-stream")


@app.get("/ready")
async def ready() -> dict[str, Any]:
    return {"ready": True}

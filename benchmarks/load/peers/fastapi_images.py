"""A FastAPI app that decodes JPEGs into a batch of FP32, as a careful author writes it.

The body is images, each after its length in four bytes; decoding runs on uvicorn's thread pool.
"""

import struct
from typing import Any

import cv2
import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

cv2.setNumThreads(1)
app = FastAPI()


def elements(body: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        if at + 4 + length > len(body):
            raise HTTPException(400, "an image is cut")
        found.append(np.frombuffer(body, np.uint8, length, at + 4))
        at += 4 + length
    return found


def answer(body: bytes) -> bytes:
    images = elements(body)
    batch = np.empty((len(images), 224, 224, 3), np.float32)
    for row, data in enumerate(images):
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if pixels is None:
            raise HTTPException(400, f"image {row} cannot be decoded")
        if pixels.shape[:2] != (224, 224):
            pixels = cv2.resize(pixels, (224, 224))
        batch[row] = pixels
    return np.ascontiguousarray(batch.reshape(len(batch), -1)[:, :10]).tobytes()


@app.post("/infer")
async def infer(request: Request) -> Response:
    body = await request.body()
    content = await run_in_threadpool(answer, body)
    return Response(content, media_type="application/octet-stream")


@app.get("/ready")
async def ready() -> dict[str, Any]:
    return {"ready": True}

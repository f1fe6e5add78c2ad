"""The models of examples/pretrained under FastAPI, with 16 threads: the package behind a route, as its page says.

uvicorn --app-dir benchmarks/load/peers fastapi_pretrained:app
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
import numpy as np
from fastapi import Body, FastAPI, Response

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/pretrained"))
import packages


@asynccontextmanager
async def sixteen(_: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = 16
    yield


app = FastAPI(lifespan=sixteen)


@cache
def package(name: str, sequence: str = "") -> packages.Call:
    """Return the package of a model; one for each sequence, if it keeps a state."""
    call: packages.Call = getattr(packages, name)()
    return call


def plain(value: Any) -> Any:
    """Return an answer in JSON's types."""
    if isinstance(value, bytes):
        return Response(value, media_type="audio/wav")
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@app.post("/file/{name}/{input}")
def file(name: str, input: str, body: bytes = Body(media_type="application/octet-stream")) -> Any:
    return plain(package(name)(**{input: body}))


@app.post("/json/{name}")
def values(name: str, body: dict[str, Any]) -> Any:
    sequence = body.pop("sequence", "")
    arrays = {key: np.array(one, np.float32) for key, one in body.items() if isinstance(one, list)}
    if name == "wake":
        arrays["samples"] = arrays["samples"].astype(np.int16)
    return plain(package(name, sequence)(**body | arrays))

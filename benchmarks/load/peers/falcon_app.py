"""A plain Falcon app around the batcher, for gunicorn's threaded worker."""

from concurrent.futures import Future
from typing import Any

import falcon
from batcher import Batcher


class Infer:
    def __init__(self) -> None:
        self.batcher = Batcher()

    def on_post(self, req: Any, resp: Any) -> None:
        future: Future[Any] = Future()
        self.batcher.submit(req.bounded_stream.read(), future.set_result)
        resp.data = future.result()


class Ready:
    def on_get(self, req: Any, resp: Any) -> None:
        resp.media = {"ready": True}


app = falcon.App()
app.add_route("/infer", Infer())
app.add_route("/ready", Ready())

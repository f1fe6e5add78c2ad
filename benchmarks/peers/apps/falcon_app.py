"""Falcon under gunicorn's threaded worker: tensors as raw bytes, a batcher of twenty lines."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import falcon
import numpy as np
from work import OnnxModel, first_ten, pictures, split_pictures, words


class Batcher:
    def __init__(self) -> None:
        self._network = OnnxModel("network")
        self._queue: queue.SimpleQueue[tuple[np.ndarray, Future[np.ndarray]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, x: np.ndarray) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        self._queue.put((x, future))
        return future

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < 8 and not self._queue.empty():
                batch.append(self._queue.get())
            answers = self._network.run(np.concatenate([x for x, _ in batch]))
            for answer, (_, future) in zip(answers, batch, strict=True):
                future.set_result(answer)


class Work:
    def __init__(self) -> None:
        self._batcher, self._forest = Batcher(), OnnxModel("forest")

    def on_post_echo(self, req: Any, resp: Any) -> None:
        resp.data = np.frombuffer(req.bounded_stream.read(), np.float32).tobytes()

    def on_post_ten_values(self, req: Any, resp: Any) -> None:
        x = np.frombuffer(req.bounded_stream.read(), np.float32)
        resp.data = first_ten(x.reshape(1, 224, 224, 3)).tobytes()

    def on_post_pictures(self, req: Any, resp: Any) -> None:
        resp.data = pictures(split_pictures(req.bounded_stream.read())).tobytes()

    def on_post_classify(self, req: Any, resp: Any) -> None:
        x = np.frombuffer(req.bounded_stream.read(), np.float32).reshape(1, 3, 224, 224)
        resp.data = self._batcher.submit(x).result().tobytes()

    def on_post_predict(self, req: Any, resp: Any) -> None:
        rows = np.array(req.media["instances"], np.float32)
        resp.media = {"predictions": self._forest.run(rows).tolist()}

    def on_post_generate(self, req: Any, resp: Any) -> None:
        assert req.media

        def events() -> Iterator[bytes]:
            for word in words():
                yield f"data: {word}\n\n".encode()

        resp.content_type, resp.stream = "text/event-stream", events()

    def on_get_ready(self, req: Any, resp: Any) -> None:
        resp.media = {"ready": True}


app = falcon.App()
work = Work()
for path, suffix in {
    "/w1": "echo", "/w2": "ten_values", "/w3": "pictures", "/w4": "echo", "/w5": "classify",
    "/w6": "predict", "/w7": "generate", "/ready": "ready",
}.items():  # fmt: skip
    app.add_route(path, work, suffix=suffix)

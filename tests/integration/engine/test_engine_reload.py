"""Loads, reloads and unloads of real models while clients send; and what is left afterwards."""

import gc
import threading

import numpy as np

from ksrv._native.queue import request_queue as queue
from ksrv.request import InferRequest, Tensor
from tests.support.engine.engine_models import engine_of
from tests.support.wait_until import wait_until

MODEL = """
handler: handler.py
inputs:
  - {name: x, datatype: FP32, shape: [-1, 4]}
outputs:
  - {name: y, datatype: FP32, shape: [-1, 4]}
batching: {max_batch_size: 8}
queue_size: 1000
"""

HANDLER = """
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        return x + ADDED
"""


def write(folder, added, model=MODEL):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(model)
    (folder / "handler.py").write_text(HANDLER.replace("ADDED", str(added)))


def request(value, model="m", rows=1, **fields):
    data = np.full((rows, 4), value, np.float32)
    return InferRequest(model, inputs=[Tensor("x", "FP32", data.shape, data)], **fields)


def answer(served, value=0.0, **fields):
    return float(
        served.submit(request(value, **fields), caller_blocks=True).wait().outputs[0].data[0, 0]
    )


def test_replaced_model_is_freed(tmp_path):
    def queues():
        gc.collect()
        return sum(isinstance(one, queue.Queue) for one in gc.get_objects())

    def threads():
        return sum(thread.name.startswith("ksrv-freed-") for thread in threading.enumerate())

    before = queues()  # of other tests of the process
    write(tmp_path / "freed", 0)
    with engine_of(tmp_path) as served:
        served.load("freed")
        wait_until(lambda: threads() == 2)
        for _ in range(5):
            served.load("freed")
            answer(served, model="freed")
        # An instance and a prefetcher, however often it was loaded.
        wait_until(lambda: threads() == 2)
        wait_until(lambda: queues() <= before + 2)
    wait_until(lambda: threads() == 0)

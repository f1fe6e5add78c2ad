"""A picture whose decoding cannot be planned: its request, and all in the batch with it, are answered."""

import json
from concurrent.futures import ThreadPoolExecutor

import requests

from ksrv.testing import Server
from tests.support.images import files
from tests.support.models import write_model

PATCHED = """
from ksrv import BaseHandler
from ksrv.images.row_plans import RowPlans

planned = RowPlans._new_plan


def failing(self, slot, height, width, channels):
    if (height, width) == (40, 30):
        raise MemoryError
    return planned(self, slot, height, width, channels)


RowPlans._new_plan = failing


class Mean(BaseHandler):
    def inference(self, image):
        return {"mean": image.mean(axis=(1, 2)), "rows": image[:, 0, 0, :1] * 0 + len(image)}
"""
DECLARED = """
executor: inline
warmup: false
batching: {max_batch_size: 4, max_delay_ms: 3600000}
inputs: [{name: image, datatype: FP32, shape: [-1, 16, 16, 3]}]
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}, {name: rows, datatype: FP32, shape: [-1, 1]}]
"""


def ask(url, picture):
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4 + len(picture)},
                }
            ]
        }
    ).encode()
    return requests.post(
        f"{url}/v2/models/m/infer",
        data=head + len(picture).to_bytes(4, "little") + picture,
        headers={
            "Accept-Encoding": "identity",  # so that the native fast path takes the request
            "Inference-Header-Content-Length": str(len(head)),
        },
        timeout=60,
    )


def test_a_picture_that_cannot_be_planned_is_decoded_as_a_whole(tmp_path):
    write_model(tmp_path, "m", PATCHED, DECLARED)
    pictures = [
        files.jpeg(33, 57, seed=1),
        files.jpeg(40, 30),
        files.jpeg(60, 90),
        files.jpeg(20, 25),
    ]
    with Server(tmp_path) as server, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda one: ask(server.url, one), pictures))
    for one in answers:
        assert one.status_code == 200, one.text
        assert one.json()["outputs"][1]["data"] == [4.0]

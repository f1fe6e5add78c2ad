"""A picture whose decoding cannot be planned fails its request alone."""

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


def failing(self, shape, height, width, channels):
    if (height, width) == (40, 30):
        raise MemoryError
    return planned(self, shape, height, width, channels)


RowPlans._new_plan = failing


class Mean(BaseHandler):
    def inference(self, image):
        return {"mean": image.mean(axis=(1, 2))}
"""
DECLARED = """
executor: inline
warmup: false
batching: {max_batch_size: 4, max_delay_ms: 500}
inputs: [{name: image, datatype: FP32, shape: [-1, 16, 16, 3]}]
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]
"""


def ask(url, picture):
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1]}
    tensor["parameters"] = {"binary_data_size": 4 + len(picture)}
    head = json.dumps({"inputs": [tensor]}).encode()
    return requests.post(
        f"{url}/v2/models/m/infer",
        data=head + len(picture).to_bytes(4, "little") + picture,
        headers={
            "Accept-Encoding": "identity",  # so that the native fast path takes the request
            "Inference-Header-Content-Length": str(len(head)),
        },
        timeout=60,
    )


def test_picture_that_cannot_be_planned_fails_alone(tmp_path):
    write_model(tmp_path, "m", PATCHED, DECLARED)
    sizes = [(33, 57), (40, 30), (60, 90), (20, 25), (50, 50)]
    with Server(tmp_path) as server, ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda size: ask(server.url, files.jpeg(*size)), sizes))
    assert [one.status_code for one in answers] == [200, 503, 200, 200, 200]
    assert "no memory for it" in answers[1].json()["error"]

"""One stream more than a worker sends at a time: it is refused, and its request given up."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.server.rest.app_messages import STREAMS
from ksrv.testing import Server
from tests.support.torchserve.archives import archive

CROWD = STREAMS + 1
HANDLER = """import time

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    rows = range(len(data))
    send_intermediate_predict_response(
        ["chunk "] * len(data), context.request_ids, "", 200, context
    )
    while all(context.listening(row) for row in rows):
        time.sleep(0.01)
    return ["last"] * len(data)
"""
"""It streams to every row of its batch until one of their clients has left."""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A server whose handler answers so many streams at once, until a client leaves."""
    folder = tmp_path_factory.mktemp("crowded")
    store, handler = folder / "store", folder / "crowd_handler.py"
    store.mkdir()
    handler.write_text(HANDLER)
    one_batch = {"batchSize": CROWD, "jobQueueSize": CROWD, "maxBatchDelay": 30_000}
    settings = one_batch | {"deviceType": "cpu", "responseTimeout": 30}
    archive(store, "crowd", str(handler), settings=settings)
    with Server(store, grpc="off", torchserve_api=True, threads=CROWD) as server:
        yield server


def test_the_handler_learns_that_a_stream_was_refused(crowded):
    """Else it would wait for the client of the refused one until its process is ended."""

    def ask(_):
        answer = requests.post(f"{crowded.url}/predictions/crowd", timeout=100)
        return answer.status_code, answer.text if answer.ok else answer.json()["error"]

    with ThreadPoolExecutor(CROWD) as pool:
        answers = Counter(pool.map(ask, range(CROWD)))
    refused = f"{STREAMS} answers are being streamed, which is the most; try again later"
    assert answers == {(200, "chunk last"): STREAMS, (503, refused): 1}

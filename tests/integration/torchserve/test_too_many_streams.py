"""One stream more than a worker sends at a time: it is refused, and its request given up."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.server.http.app_messages import STREAMS
from ksrv.testing import Server
from tests.support.torchserve.archives import archive

CROWD = STREAMS + 1


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A server whose handler answers so many streams at once, until a client leaves."""
    store = tmp_path_factory.mktemp("crowded") / "store"
    store.mkdir()
    one_batch = {"batchSize": CROWD, "jobQueueSize": CROWD, "maxBatchDelay": 30_000}
    settings = one_batch | {"deviceType": "cpu", "responseTimeout": 30}
    archive(store, "crowd", "crowd_handler.py", settings=settings)
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

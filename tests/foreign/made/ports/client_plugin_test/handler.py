import json

import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    """Says whether a request has the headers that its only input names."""

    def inference(self, EXPECTED_HEADERS, batch):
        expected = json.loads(EXPECTED_HEADERS[0])
        headers = batch.requests[0].headers
        found = all(headers.get(name) == value for name, value in expected.items())
        return {"TEST_SUCCESS": np.array([found])}

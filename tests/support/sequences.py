"""Models that serve sequences, and clients that send them over REST and gRPC."""

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server

SUMS = """
import os
import signal
import time

from ksrv import BaseHandler, InferenceError


class Sums(BaseHandler):
    '''Adds up the rows of each sequence; some values make it behave badly.'''

    def inference(self, x, sequences, batch):
        y = x.copy()
        y[:, 2] = os.getpid()
        y[:, 3] = len(batch.requests)
        for row, sequence in enumerate(sequences):
            value = x[row, 0]
            if value == -1:
                raise InferenceError("this value is refused", 422)
            if value == -2:
                raise ValueError("secret")
            if value == -3:
                os.kill(os.getpid(), signal.SIGKILL)
            if value == -4:
                time.sleep(0.3)
            sequence.state["sum"] = y[row, 0] = sequence.state.get("sum", 0) + value
            y[row, 1] = 10 * sequence.start + sequence.end
        return {"y": y}
"""

SHAPES = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
"""


class Refused(Exception):
    """An error answer; `status` is HTTP's, or the name of gRPC's code."""

    def __init__(self, status: int | str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


def row(value: float) -> np.ndarray[Any, Any]:
    return np.array([[value, 0, 0, 0]], np.float32)


def over_rest(server: Server, model: str, value: float, **parameters: Any) -> list[float]:
    """Send one row over REST; `parameters` are the request's, such as `sequence_id`."""
    return post(
        server,
        f"/v2/models/{model}/infer",
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value, 0, 0, 0]}
            ],
            "parameters": parameters,
        },
    )["outputs"][0]["data"]


def post(server: Server, path: str, document: Any) -> Any:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", text)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise Refused(error.code, json.load(error)["error"]) from None


def over_grpc(server: Server, model: str, value: float, **parameters: Any) -> list[float]:
    """Send one row with tritonclient, which knows sequences."""
    tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(row(value))
    try:
        with triton_grpc.InferenceServerClient(str(server.grpc)) as client:
            answer = client.infer(model, [tensor], client_timeout=60, **parameters)
    except InferenceServerException as error:
        raise Refused(error.status().removeprefix("StatusCode."), error.message()) from None
    return answer.as_numpy("y")[0].tolist()

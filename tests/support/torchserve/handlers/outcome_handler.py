"""Does what the body's key `do` says."""

import json
import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.utils.util import PredictionException

ITEMS = {
    "bytes": b"\x00\x01\xff",
    "str": "hello",
    "str_utf8": "h\u00e9llo",
    "number": 3.5,
    "int": 7,
    "true": True,
    "null": None,
    "list": [1, 2.5, "a"],
    "dict_item": {"b": 1, "a": [1, 2]},
    "nan": {"a": float("nan")},
    "tuple_item": (1, 2),
    "unserialisable": object(),
}
RAISED = {
    "exception": ValueError("no"),
    "cuda_message": RuntimeError("CUDA out of memory"),
    "memory_error": MemoryError(),
    "prediction_default": PredictionException("custom 500"),
    "prediction_400": PredictionException("custom 400", 400),
    "prediction_422": PredictionException("custom 422", 422),
    "prediction_413": PredictionException("bad input shape", 413),
    "system_exit": SystemExit(3),
}
RETURNED = {
    "return_dict": {"a": 1},
    "return_none": None,
    "return_tuple": (1,),
    "wrong_length": [1, 2],
}


class Outcome:
    def initialize(self, context):
        import torch  # on a busy machine its first import takes longer than a request may

        self.state = "loaded"
        self.torch = torch

    def handle(self, data, context):
        body = data[0]["body"]
        if isinstance(body, (bytes, bytearray)):
            text = body.decode()
            body = json.loads(text) if text.startswith("{") else {"mode": text}
        wanted = body["mode"]
        if wanted in ITEMS:
            return [ITEMS[wanted]] * len(data)
        if wanted in RAISED:
            raise RAISED[wanted]
        if wanted in RETURNED:
            return RETURNED[wanted]
        return getattr(self, wanted)(data, context, body)

    def tensor(self, data, context, body):
        return [self.torch.arange(3)] * len(data)

    def return_tensor(self, data, context, body):
        return self.torch.zeros(len(data))

    def status(self, data, context, body):
        context.set_response_status(code=418, phrase="Teapot", idx=0)
        context.set_response_header(0, "x-foo", "bar")
        context.set_response_content_type(0, "text/x-q")
        return ["tea"] * len(data)

    def stream(self, data, context, body):
        for number in range(3):
            send_intermediate_predict_response(
                [f"chunk{number} "] * len(data), context.request_ids, "going on", 200, context
            )
            while number == 0 and "go" in body and not os.path.exists(body["go"]):
                time.sleep(0.01)
        return ["last"] * len(data)

    def endless(self, data, context, body):
        sent = 0
        while context.listening(0):
            send_intermediate_predict_response(["chunk"], context.request_ids, "", 200, context)
            sent += 1
            time.sleep(0.01)
        with open(body["left"], "w") as file:
            file.write(f"{context.listening()} after {sent}")
        return ["nobody reads this"]

    def slow(self, data, context, body):
        time.sleep(body["t"])
        return ["slow"] * len(data)

    def wait_for(self, data, context, body):
        with open(body["started"], "w"):
            pass
        while not os.path.exists(body["file"]):
            time.sleep(0.01)
        return ["waited"] * len(data)

    def hard_exit(self, data, context, body):
        os._exit(1)

    def pid(self, data, context, body):
        return [str(os.getpid())] * len(data)

    def metrics(self, data, context, body):
        metrics = context.metrics
        metrics.add_counter("MyCount", 2, 0, [])
        metrics.add_time("MyTime", 1.5, None, "ms")
        metrics.add_size("MySize", 3, None, "MB")
        metrics.add_percent("MyPct", 50)
        metrics.add_error("MyErr", 1)
        metrics.add_metric(
            "MyHist",
            value=0.3,
            unit="s",
            dimensions=[Dimension("k", "v")],
            metric_type=MetricTypes.HISTOGRAM,
        )
        return ["ok"] * len(data)

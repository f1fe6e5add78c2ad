"""Reads handwritten digits: the handler that `make demo` serves."""

from typing import Any

from ksrv import BaseHandler


class Digits(BaseHandler):
    def preprocess(self, batch: Any) -> Any:
        return batch.tensor("image").permute(0, 3, 1, 2) / 255

    def postprocess(self, logits: Any) -> Any:
        probabilities = logits.softmax(dim=1)
        return {"digit": probabilities.argmax(dim=1), "probability": probabilities.amax(dim=1)}

"""Reads handwritten digits: the handler that `make demo` serves."""

from ksrv import BaseHandler


class Digits(BaseHandler):
    def preprocess(self, batch):
        return batch.tensor("image").permute(0, 3, 1, 2) / 255

    def postprocess(self, logits):
        probabilities = logits.softmax(dim=1)
        return {"digit": probabilities.argmax(dim=1), "probability": probabilities.amax(dim=1)}

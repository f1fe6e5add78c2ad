"""Two handlers in one file: a class with settings, and a function.

python moods.py serves both; `ksrv serve moods.py:Moods` the first alone.
"""

from typing import TypedDict

import numpy as np

from ksrv import BaseHandler, Batch, Bytes, Context, Float32, Int64, serve, settings

MOST_ROWS = 16


class Answer(TypedDict):
    mood: Bytes
    score: Float32


@settings(
    batching={"max_batch_size": MOST_ROWS},
    parameters={"good": ["happy", "sun"], "bad": ["sad", "rain"]},
)
class Moods(BaseHandler):
    """Tells the mood of texts, by counting words."""

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.good = set(context.parameters["good"])
        self.bad = set(context.parameters["bad"])

    def inference(self, text: Bytes, batch: Batch) -> Answer:
        scores = np.zeros(batch.rows, np.float32)
        for row, line in enumerate(text):
            words = line.decode("utf-8", "replace").lower().split()
            if not words:
                batch.fail(row, "the text has no words", 422)
            scores[row] = sum((word in self.good) - (word in self.bad) for word in words)
        for request in batch.requests:
            self.context.metrics.histogram("moods_texts_per_request", request.rows)
        return {"mood": [self.name(float(score)) for score in scores], "score": scores}

    def name(self, score: float) -> str:
        return "good" if score > 0 else "bad" if score < 0 else "neutral"


def lengths(text: Bytes) -> Int64:
    return np.array([len(line) for line in text])


if __name__ == "__main__":
    serve(Moods, lengths)

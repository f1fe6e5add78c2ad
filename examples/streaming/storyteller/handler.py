"""Tells a story word by word, as a language model makes one token after the other."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ksrv import BaseHandler


class Storyteller(BaseHandler):
    def inference(self, text_input: np.ndarray) -> list[Iterator[str]]:
        # One generator for each row: each request of the batch has a separate stream.
        batch = self.context.batch
        return [
            self.tell(bytes(text).decode(), batch.requests[batch.request_of(row)].parameters)
            for row, text in enumerate(text_input)
        ]

    def tell(self, beginning: str, parameters: Mapping[str, Any]) -> Iterator[str]:
        words = f"{beginning} and they lived happily ever after".split()
        for word in words[: int(parameters.get("max_tokens", 100))]:
            time.sleep(float(parameters.get("pause", 0)))
            yield word + " "

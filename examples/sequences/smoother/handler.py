"""Smooths the signals of many sensors, each of which is a sequence of requests."""

from typing import Any

import numpy as np

from ksrv import BaseHandler


class Smoother(BaseHandler):
    def inference(self, value: np.ndarray, sequences: list[Any]) -> dict[str, np.ndarray]:
        # A batch has rows of many sequences; `sequences[row]` is the row's sequence.
        smoothed = np.empty_like(value)
        keep = float(self.context.parameters["keep"])
        for row, sequence in enumerate(sequences):
            before = sequence.state.get("smoothed", value[row])
            smoothed[row] = keep * before + (1 - keep) * value[row]
            sequence.state["smoothed"] = smoothed[row].copy()
        return {"smoothed": smoothed}

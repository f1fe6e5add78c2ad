"""Requests that differ in every number, and the model that answers them.

Each element of a pattern encodes the request's id and the element's index. One comparison finds an answer with any element of
another request.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.models import write_model

Array = NDArray[np.int64]

INDEX_BITS = 20
MODELS = ("here", "joined", "separate")

HANDLER = """
import os
from pathlib import Path

import numpy as np
from ksrv import BaseHandler


class Recorded(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        journal = Path(__file__).parent / "journal"
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def inference(self, x):
        os.write(self.journal, np.ascontiguousarray(x[:, 0]).tobytes())
        return {"y": ANSWER}
"""

SETTINGS = """
inputs: [{name: x, datatype: INT64, shape: [-1, -1]}]
outputs: [{name: y, datatype: INT64, shape: [-1, -1]}]
warmup: false
timeout_ms: 60000
"""

YAML = {
    "here": "executor: inline\n",
    "joined": "executor: inline\nbatching: {max_batch_size: 4, max_delay_ms: 1}\n",
    "separate": "executor: process\ninstances: 2\nbatching: {max_batch_size: 4, max_delay_ms: 0}\n",
}


def write_patterns(root: Path, names: tuple[str, ...] = MODELS, handler: str = HANDLER) -> Path:
    """Write the models: `here` answers the input, the others every number's complement."""
    for name in names:
        answer = "x" if name == "here" else "~x"
        write_model(root, name, handler.replace("ANSWER", answer), SETTINGS + YAML[name])
    return root


def executed(root: Path, name: str) -> Counter[int]:
    """Return how often the rows of each pattern were run, by its id."""
    journal = root / name / "journal"
    content = journal.read_bytes() if journal.exists() else b""
    return Counter((np.frombuffer(content, "<i8") >> INDEX_BITS).tolist())


@dataclass(frozen=True)
class Pattern:
    """One request."""

    id: int
    model: str
    rows: int
    width: int

    @cached_property
    def array(self) -> Array:
        places = np.arange(self.rows * self.width, dtype=np.int64).reshape(self.rows, self.width)
        return (np.int64(self.id) << INDEX_BITS) | places

    @property
    def expected(self) -> Array:
        return self.array if self.model == "here" else ~self.array

    def strange_elements(self, answer: Array) -> int:
        if answer.shape != self.array.shape:
            return int(answer.size) or 1
        return int((answer != self.expected).sum())


def draw_pattern(
    choose: random.Random, models: tuple[str, ...] = MODELS, *, large: float = 0.05
) -> Pattern:
    """Return a pattern of a new id."""
    width = choose.randint(10_000, 50_000) if choose.random() < large else choose.randint(1, 64)
    # Random ids: one changed bit of an id must not make it another request's.
    return Pattern(choose.getrandbits(42), choose.choice(models), choose.randint(1, 3), width)


def remove_journals(root: Path) -> None:
    """Forget what was executed; the handlers write on."""
    for journal in root.glob("*/journal"):
        os.truncate(journal, 0)

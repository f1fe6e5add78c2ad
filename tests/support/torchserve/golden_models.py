"""The models of the recorded answers, every weight by its formula, and the picture sent to them."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from tests.support.paths import GOLDEN

RECORDED = GOLDEN / "torchserve"
TEN_LABELS = {str(index): [f"n0{index}", f"class{index}"] for index in range(10)}
WORDS = "it is its not do bad good very cafe 3 a b cannot will as".split()  # noqa: SIM905
# Complete, because the real text handler fails on a pair of words that is not in it.
VOCABULARY = ["<unk>", *WORDS, *(f"{first} {second}" for first in WORDS for second in WORDS)]


def recorded(name: str) -> dict[str, Any]:
    """Return the cases of a file in tests/golden/torchserve by their ids."""
    return {case["id"]: case for case in json.loads((RECORDED / name).read_text())["cases"]}


def _fill(parameter: nn.Parameter, scale: float) -> None:
    values = (torch.arange(parameter.numel()) * 37 + 11) % 101 - 50
    with torch.no_grad():
        parameter.copy_((values.float() / scale).reshape(parameter.shape))


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.c(x)}


class Detector(nn.Module):
    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        out: list[dict[str, torch.Tensor]] = []
        for _ in range(x.shape[0]):
            boxes = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.0, 0.0, 1.0, 1.0]]
            out.append(
                {
                    "boxes": torch.tensor(boxes),
                    "labels": torch.tensor([1, 2, 1]),
                    "scores": torch.tensor([0.9, 0.5, 0.4]),
                }
            )
        return out


class ChannelMean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().mean(dim=(2, 3))


class Words(nn.Module):
    """A text classifier of three labels, as TorchServe's text handler calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(len(VOCABULARY), 4)
        self.last = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.last(self.embedding(tokens, offsets))


def golden_classifier() -> nn.Module:
    """Return the model of cls.pt."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    for parameter in layers.parameters():
        _fill(parameter, 200.0)
    return layers.eval()


def write_golden_models(folder: Path) -> None:
    """Write cls.pt, seg.pt, det.pt, img.pt, words.pt and what belongs to them."""
    made = {
        "cls": (golden_classifier(), 200.0),
        "seg": (Segmenter(), 25.0),
        "words": (Words(), 50.0),
    }
    made |= {"det": (Detector(), 1.0), "img": (ChannelMean(), 1.0)}
    for name, (model, scale) in made.items():
        for parameter in model.parameters():
            _fill(parameter, scale)
        torch.jit.script(model.eval()).save(str(folder / f"{name}.pt"))
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    torch.save(vocabulary, folder / "source_vocab.pt")
    (folder / "ten").mkdir()
    (folder / "ten" / "index_to_name.json").write_text(json.dumps(TEN_LABELS))


def picture() -> Image.Image:
    """Return the synthetic picture that the recorded answers are to."""
    y, x = np.mgrid[0:480, 0:640]
    red = (5 * x + 3 * y) % 256
    green = (x * y // 16) % 256
    blue = 200 * ((x // 8 + y // 8) % 2) + (x + 2 * y) % 56
    image = Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))
    known = json.loads((RECORDED / "images.json").read_text())["synthetic-640x480.png"]
    assert hashlib.sha256(image.tobytes()).hexdigest() == known["sha256_of_rgb_bytes"]
    return image


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """Return the image as a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()

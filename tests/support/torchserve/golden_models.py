"""The models of the recorded answers, every weight by its formula, and the picture sent to them."""

import base64
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


def fill(model: nn.Module, scale: float) -> nn.Module:
    """Give a model its weights, and return it."""
    for parameter in model.parameters():
        values = (torch.arange(parameter.numel()) * 37 + 11) % 101 - 50
        with torch.no_grad():
            parameter.copy_((values.float() / scale).reshape(parameter.shape))
    return model.eval()


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.c(x)}


class Detector(nn.Module):
    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        out: list[dict[str, torch.Tensor]] = []
        for row in range(x.shape[0]):
            boxes = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.0, 0.0, 1.0, 1.0]])
            scores = torch.tensor([0.9, 0.5, 0.4])
            if float(x[row].sum()) == 0.0:  # nothing is sure on a black picture
                scores = scores - 0.45
            out.append({"boxes": boxes, "labels": torch.tensor([1, 2, 1]), "scores": scores})
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
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    return fill(layers, 200.0)


def write_golden_models(folder: Path) -> None:
    """Write cls.pt, seg.pt, det.pt, img.pt, words.pt and what belongs to them."""
    made = {
        "cls": golden_classifier(),
        "seg": fill(Segmenter(), 25.0),
        "words": fill(Words(), 50.0),
        "det": Detector().eval(),
        "img": ChannelMean().eval(),
    }
    for name, model in made.items():
        torch.jit.script(model).save(str(folder / f"{name}.pt"))
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
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def content_of(request: dict[str, Any]) -> bytes:
    """Return the body of a recorded request, or its content where a test gives it one."""
    if "content" in request:
        content: bytes = request["content"]
        return content
    if "body_ref" in request:
        return named_content(request["body_ref"])
    if "parts" in request:
        pieces = b""
        for part in request["parts"]:
            head = f'--ksrvboundary\r\nContent-Disposition: form-data; name="{part["name"]}"'
            if "filename" in part:
                head += f'; filename="{part["filename"]}"'
            if "content_type" in part:
                head += f"\r\nContent-Type: {part['content_type']}"
            data = part["data"]
            content = data["text"].encode() if "text" in data else named_content(data["ref"])
            pieces += head.encode() + b"\r\n\r\n" + content + b"\r\n"
        return pieces + b"--ksrvboundary--\r\n"
    body = request.get("body", {})
    return base64.b64decode(body["base64"]) if "base64" in body else body.get("text", "").encode()


def named_content(name: str) -> bytes:
    """Return what the recorded requests call by a name."""
    image = picture()
    images = json.loads((RECORDED / "images.json").read_text())
    noise = base64.b64decode(images["noise8.jpg"]["base64"])
    return {
        "synthetic-640x480.png": lambda: encoded(image),
        "base64 of synthetic-640x480.png": lambda: base64.b64encode(encoded(image)),
        "synthetic-640x480.png converted to one channel": lambda: encoded(image.convert("L")),
        "synthetic-640x480.png with an opaque alpha channel": lambda: encoded(
            image.convert("RGBA")
        ),
        "noise8.jpg": lambda: noise,
        "base64 of noise8.jpg": lambda: base64.b64encode(noise),
        'JSON object {"data": base64 of noise8.jpg}': lambda: json.dumps(
            {"data": base64.b64encode(noise).decode()}
        ).encode(),
        "JSON list 3x8x8, all 1.0": lambda: json.dumps([[[1.0] * 8] * 8] * 3).encode(),
        "JSON list 3x224x224, all 0.0": lambda: json.dumps([[[0.0] * 224] * 224] * 3).encode(),
        "7,000,000 bytes of x": lambda: b"x" * 7_000_000,
    }[name]()

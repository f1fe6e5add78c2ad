"""Trains a small convolutional network on scikit-learn's handwritten digits, in a few seconds.

The network sees each digit the way the server will hand it over: drawn at some size, stored as a
PNG or JPEG file, decoded, cast to float and resized by areas to 16 x 16.
"""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SIDE = 16


@dataclass(frozen=True)
class Digit:
    """One held-out digit: its 8 x 8 picture, its file and what it shows."""

    picture: np.ndarray
    file: bytes
    truth: int


def encode(picture: np.ndarray, number: int) -> bytes:
    """Return the picture as a grey PNG or JPEG file of a size that depends on its number."""
    height, width = 20 + number % 23, 20 + number % 19
    drawn = cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC)
    suffix, options = (".png", []) if number % 2 else (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 92])
    return cv2.imencode(suffix, drawn, options)[1].tobytes()


def decode(file: bytes) -> np.ndarray:
    """Return what the server makes of the file: FP32 [16, 16, 1], values 0 to 255."""
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    return cv2.resize(pixels.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)[
        ..., np.newaxis
    ]


def held_out_and_training() -> tuple[list[Digit], list[Digit]]:
    """Return the fifth of the digits that is kept for the test, and the rest."""
    digits = load_digits()
    pictures = (digits.images * (255 / 16)).astype(np.uint8)
    numbers = np.arange(len(pictures))
    train, test = train_test_split(numbers, test_size=0.2, random_state=7, stratify=digits.target)

    def drawn(chosen: np.ndarray) -> list[Digit]:
        return [
            Digit(pictures[i], encode(pictures[i], int(i)), int(digits.target[i])) for i in chosen
        ]

    return drawn(test), drawn(train)


def network() -> nn.Module:
    """Return the untrained network: FP32 [N, 1, 16, 16], values 0 to 1, to ten logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(digits: list[Digit], weights: Path, epochs: int = 12) -> None:
    """Train on `digits` and write the network as TorchScript."""
    torch.manual_seed(7)
    images = torch.from_numpy(np.stack([decode(digit.file) for digit in digits]))
    images = images.permute(0, 3, 1, 2) / 255
    truths = torch.tensor([digit.truth for digit in digits])
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), truths[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        torch.jit.trace(model, images[:2]).save(str(weights))

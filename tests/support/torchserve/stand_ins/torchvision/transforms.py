"""Resize, crop, to numbers, normalise."""

import numpy as np
import torch
from PIL import Image


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class Resize:
    def __init__(self, edge):
        self.edge = edge

    def __call__(self, image):
        width, height = image.size
        if width <= height:
            size = self.edge, int(self.edge * height / width)
        else:
            size = int(self.edge * width / height), self.edge
        return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


class CenterCrop:
    def __init__(self, edge):
        self.edge = edge

    def __call__(self, image):
        left = round((image.width - self.edge) / 2.0)
        top = round((image.height - self.edge) / 2.0)
        return image.crop((left, top, left + self.edge, top + self.edge))


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean = torch.tensor(mean)[:, None, None]
        self.std = torch.tensor(std)[:, None, None]

    def __call__(self, tensor):
        return tensor.clone().sub_(self.mean).div_(self.std)

"""Finds the bright box in a picture, in place of a detection model."""

import numpy as np

from ksrv import BaseHandler


class Detector(BaseHandler):
    def inference(self, image: np.ndarray) -> dict[str, np.ndarray]:
        boxes = np.zeros((len(image), 4), np.int64)
        for row, picture in enumerate(image):
            ys, xs = np.nonzero(picture.max(axis=-1) > 64)
            if len(xs):
                boxes[row] = xs.min(), ys.min(), xs.max() + 1, ys.max() + 1
        return {"box": boxes}

"""Detects, crops and classifies: two other models of the server, called from a handler."""

from typing import Any

import cv2
import numpy as np

from ksrv import BaseHandler

COLOURS = ("red", "green", "blue")


class Pipeline(BaseHandler):
    def inference(self, image: np.ndarray) -> dict[str, Any]:
        models = self.context.models
        boxes = models["detector"].infer({"image": image})["box"]
        crops = np.zeros((len(image), 16, 16, 3), np.float32)
        for row, (left, top, right, bottom) in enumerate(boxes):
            if right > left:
                crops[row] = cv2.resize(image[row, top:bottom, left:right], (16, 16))
        scores = models["shapes"].infer({"crop": crops})["scores"]
        return {"box": boxes, "colour": [COLOURS[best] for best in scores.argmax(axis=1)]}

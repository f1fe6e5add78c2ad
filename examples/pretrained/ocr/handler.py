import cv2
import numpy as np
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess

from ksrv import BaseHandler


def read(crops, model):
    return model.infer({"line": [cv2.imencode(".bmp", crop)[1].tobytes() for crop in crops]})


class Ocr(BaseHandler):
    def inference(self, picture: bytes) -> list:
        models = self.context.models
        likely = models["lines"].infer({"picture": [picture]})["likely"]
        pixels = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
        height, width = pixels.shape[:2]
        find = DBPostProcess(0.3, 0.5, unclip_ratio=1.6, use_dilation=True)
        found = find(likely, (height, width))[0].reshape(-1, 4, 2)
        found = found.clip(0, [width - 1, height - 1]).astype(np.float32)
        boxes = RapidOCR.sorted_boxes(found)
        crops = RapidOCR.get_crop_img_list(None, pixels, boxes)
        lines = {}
        order = np.argsort([crop.shape[1] / crop.shape[0] for crop in crops])
        for start in range(0, len(order), 6):  # the package reads six lines at a time
            six = order[start : start + 6]
            turned = read([crops[at] for at in six], models["upside"])["turned"][:, 1] > 0.9
            upright = [np.rot90(crops[at], 2 * turn) for at, turn in zip(six, turned, strict=True)]
            found = read(upright, models["reader"])
            for at, text, score in zip(six, found["text"], found["score"], strict=True):
                lines[at] = [boxes[at].tolist(), text.decode(), float(score)]
        return [lines[at] for at in sorted(lines) if lines[at][2] >= 0.5]

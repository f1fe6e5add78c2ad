import cv2
import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    """Decodes files and scales them as Inception takes them."""

    def inference(self, INPUT):
        images = []
        for (encoded,) in INPUT:
            image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
            images.append(cv2.resize(image, (299, 299)).astype(np.float32) / 127.5 - 1)
        return {"OUTPUT": np.stack(images)}

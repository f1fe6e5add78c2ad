"""Names the colour of a crop, in place of a classifier."""

import numpy as np

from ksrv import BaseHandler


class Shapes(BaseHandler):
    def inference(self, crop: np.ndarray) -> dict[str, np.ndarray]:
        return {"scores": crop.mean(axis=(1, 2)) / 255}

import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, INPUT__0):
        return np.tile(INPUT__0.mean(axis=(1, 2, 3))[:, None], (1, 10))

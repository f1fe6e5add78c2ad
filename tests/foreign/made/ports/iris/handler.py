import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    """Tells flowers by the length of their petals."""

    def inference(self, flowers):
        return np.digitize(flowers[:, 2], [2.5, 4.9]).astype(np.int64)

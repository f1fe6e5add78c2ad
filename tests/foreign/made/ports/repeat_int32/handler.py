import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, IN, DELAY, WAIT):
        for index, value in enumerate(IN):
            yield {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}

import numpy as np
from openwakeword.model import Model

from ksrv import BaseHandler, Float32, Int16


class Wake(BaseHandler):
    def inference(self, samples: Int16[1280], sequences) -> Float32:
        for one in sequences:
            if one.start:
                one.state["package"] = Model(["hey_jarvis_v0.1"], inference_framework="onnx")
        pairs = zip(sequences, samples, strict=True)
        scores = [one.state["package"].predict(row)["hey_jarvis_v0.1"] for one, row in pairs]
        return np.array(scores, np.float32)

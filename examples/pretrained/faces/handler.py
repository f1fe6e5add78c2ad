import numpy as np

from ksrv import BaseHandler


class Faces(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.anchors = np.load(context.file("anchors.npy"))

    def inference(self, picture):
        raw = self.model(picture)
        boxes = raw["boxes"][..., :4]
        boxes[..., :2] += self.anchors
        return {"boxes": boxes, "scores": raw["scores"]}

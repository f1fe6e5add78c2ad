from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, INPUT0):
        return INPUT0

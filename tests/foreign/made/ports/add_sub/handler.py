from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, INPUT0, INPUT1):
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}

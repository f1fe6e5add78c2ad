from ksrv import BaseHandler


class Model(BaseHandler):
    calls_models = True

    def inference(self, MODEL_NAME, INPUT0, INPUT1):
        called = self.context.models[MODEL_NAME[0].decode()]
        return called.infer({"INPUT0": INPUT0, "INPUT1": INPUT1})

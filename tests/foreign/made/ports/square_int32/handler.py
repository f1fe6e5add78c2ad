from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, IN):
        for _ in range(int(IN[0])):
            yield {"OUT": IN}

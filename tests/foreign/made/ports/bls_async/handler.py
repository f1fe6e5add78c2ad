from ksrv import BaseHandler


class Model(BaseHandler):
    calls_models = True

    async def inference(self, INPUT0, INPUT1):
        given = {"INPUT0": INPUT0, "INPUT1": INPUT1}
        calls = [self.context.models[name].submit(given) for name in ("pytorch", "add_sub")]
        first, second = [await call for call in calls]
        return {"OUTPUT0": first["OUTPUT0"], "OUTPUT1": second["OUTPUT1"]}

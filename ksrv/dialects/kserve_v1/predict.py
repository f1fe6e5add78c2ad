"""The routes predict and explain of KServe's protocol v1."""

from ksrv.dialects.kserve_v1 import bodies
from ksrv.server.rest.infer import Form, InferResource


class PredictResource(InferResource):
    """POST /v1/models/{name}[/versions/{version}]:predict, and :explain."""

    form = Form(bodies.parse_predict, bodies.render_predict)
    most_json = bodies.MOST_BYTES
    subject = bodies.REQUEST

"""KServe's protocol v1, and TensorFlow Serving's and OpenAI's lists of models, which share its paths."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect

if TYPE_CHECKING:
    import falcon

MODEL = "/v1/models/{name}"


class KServeV1(Dialect):
    """See the module."""

    name = "kserve_v1"

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`."""
        from ksrv.dialects.kserve_v1.models import V1ModelListResource, V1ModelResource
        from ksrv.dialects.kserve_v1.predict import PredictResource
        from ksrv.server.rest.route_guard import Needs

        app.add_route("/v1/models", V1ModelListResource(parts.engine), needs=Needs.TOKEN)
        app.add_route(MODEL, V1ModelResource(parts.engine), needs=Needs.TOKEN)
        add_predict(app, PredictResource(parts.engine, parts.settings, parts.budget, parts.access))


def add_predict(app: "falcon.App[Any, Any]", predict: object) -> None:
    """Add a resource that answers predict and explain; it replaces an earlier resource."""
    from ksrv.server.rest.route_guard import Needs

    for prefix in (MODEL, MODEL + "/versions/{version}"):
        app.add_route(prefix + ":predict", predict, needs=Needs.TOKEN)
        app.add_route(prefix + ":explain", predict, suffix="explain", needs=Needs.TOKEN)


DIALECT = KServeV1()

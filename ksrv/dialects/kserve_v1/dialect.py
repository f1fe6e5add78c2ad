"""The dialect of KServe's protocol v1. It also lists models for clients of TensorFlow Serving and OpenAI's API.

The three protocols have the path /v1/models in common, so one answer has the fields of all.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect

if TYPE_CHECKING:
    import falcon

    from ksrv.model.spec import ModelSpec
    from ksrv.statistics import ModelStatistics

MODEL = "/v1/models/{name}"


class KServeV1(Dialect):
    """See the module."""

    name = "kserve_v1"
    metrics_compat = "kserve"

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`."""
        from ksrv.dialects.kserve_v1.models import V1ModelsResource
        from ksrv.dialects.kserve_v1.predict import PredictResource, takes_instances
        from ksrv.protocol.documents import Models
        from ksrv.protocol.openapi import Operation
        from ksrv.server.rest.route_guard import Needs

        described = {"get": Operation("The models", "v1", Models)}
        models = V1ModelsResource(parts.engine)
        app.add_route("/v1/models", models, suffix="list", needs=Needs.TOKEN, described=described)
        described = {"get": Operation("Whether the model serves")}
        app.add_route(MODEL, models, needs=Needs.TOKEN, described=described)
        add_predict(app, parts, PredictResource(parts), takes_instances)

    def metric_lines(self, models: "Sequence[ModelStatistics]") -> Iterator[str]:
        """See `Dialect.metric_lines`."""
        from ksrv.dialects.kserve_v1.metric_names import metric_lines

        return metric_lines(models)


def add_predict(
    app: "falcon.App[Any, Any]",
    parts: AppParts,
    predict: object,
    serves: "Callable[[ModelSpec], bool]",
) -> None:
    """Add a resource that answers predict and explain; it replaces an earlier resource.

    Args:
        serves: Whether `bodies.read_predict` reads the requests for a model.
    """
    from ksrv.dialects.kserve_v1.bodies import PREDICT, read_predict
    from ksrv.server.rest.route_guard import Needs
    from ksrv.server.shared.plain_route import PlainRoute

    described = {"post": PREDICT}
    for prefix in MODEL, MODEL + "/versions/{version}", MODEL + "/labels/{label}":
        app.add_route(prefix + ":predict", predict, needs=Needs.TOKEN, described=described)
        described = {}
        if "{label}" in prefix:  # of TensorFlow Serving
            continue
        app.add_route(prefix + ":explain", predict, suffix="explain", needs=Needs.TOKEN)
        route = PlainRoute("instances", "predictions", read_predict, serves)
        parts.plain_routes[prefix + ":predict"] = route


DIALECT = KServeV1()

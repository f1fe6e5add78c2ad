"""TensorFlow Serving's REST routes. `:predict` is in `ksrv.dialects.kserve_v1`, because KServe's v1 has it, too."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import falcon
import orjson

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.kserve_v1.predict import PredictResource
from ksrv.dialects.numbered_versions import find_version
from ksrv.dialects.tfserving import examples, metadata
from ksrv.model.spec import ModelSpec
from ksrv.protocol.accept import JSON_TYPE
from ksrv.protocol.error_texts import read_json
from ksrv.protocol.rest import RenderedBody
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse
from ksrv.server.http.answers import send_json
from ksrv.server.rest.route_guard import Needs
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

MODEL = "/v1/models/{name}"


def add_routes(app: "falcon.App[Any, Any]", parts: AppParts) -> None:
    """Add the routes to the app."""
    models = ModelsResource(parts.engine)
    classify = ExamplesResource(parts, examples.classifications)
    regress = ExamplesResource(parts, lambda response, labels: examples.regressions(response))
    for prefix in MODEL, f"{MODEL}/versions/{{version}}", f"{MODEL}/labels/{{label}}":
        if prefix != MODEL:  # KServe's v1 has it
            app.add_route(prefix, models, needs=Needs.TOKEN)
        app.add_route(f"{prefix}/metadata", models, suffix="metadata", needs=Needs.TOKEN)
        app.add_route(f"{prefix}:classify", classify, needs=Needs.TOKEN)
        app.add_route(f"{prefix}:regress", regress, needs=Needs.TOKEN)


class ModelsResource:
    """The state and the metadata of a version."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str, **version: str) -> None:
        """GET /v1/models/{name}/versions/{version}: answer the state of a version."""
        wanted = find_version(self._engine, name, **version)
        send_json(resp, metadata.document_of(metadata.status_message(self._engine, name, wanted)))

    def on_get_metadata(
        self, req: falcon.Request, resp: falcon.Response, name: str, **version: str
    ) -> None:
        """GET /v1/models/{name}/metadata: answer the signature, with the keys of TensorFlow Serving and of OVMS."""
        spec = self._engine.describe(name, find_version(self._engine, name, **version))
        message, key = metadata.metadata_message(spec), metadata.SIGNATURE_DEF
        document = metadata.document_of(message)
        other = metadata.document_of(message, underscores=False)
        document["modelSpec"] = other["modelSpec"]
        document["metadata"][key] |= other["metadata"][key]
        send_json(resp, document)


class ExamplesResource(PredictResource):
    """POST :classify or :regress.

    Args:
        parts: The parts that the front ends share.
        results: Returns the results of the examples, for the labels of the model.
    """

    subject = "a classify or regress request"

    def __init__(
        self, parts: ServerParts, results: Callable[[InferResponse, Sequence[str] | None], Any]
    ) -> None:
        super().__init__(parts)
        self._results = results

    def _parse(
        self, req: falcon.Request, body: memoryview, spec: ModelSpec, *, explain: bool, **given: Any
    ) -> InferRequest:
        document = read_json(body)
        document = document if isinstance(document, dict) else {}
        rows = document.get("examples"), document.get("context") or {}
        return InferRequest(
            spec.name,
            inputs=examples.example_inputs(*rows, spec, self._limits),
            headers=self._headers(req),
            nbytes=len(body),
        )

    def _render(
        self, request: InferRequest, memory: CallerMemory | None, response: InferResponse
    ) -> RenderedBody:
        text = orjson.dumps({"result": self._results(response, request.target.spec.labels)})
        return RenderedBody([text], len(text), None, JSON_TYPE)

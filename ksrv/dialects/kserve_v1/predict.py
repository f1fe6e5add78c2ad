"""The routes predict and explain of KServe's protocol v1."""

from typing import Any

import falcon

from ksrv.dialects.kserve_v1 import bodies
from ksrv.dialects.numbered_versions import find_version
from ksrv.model.spec import ModelSpec
from ksrv.protocol.rest import HEADER_LENGTH, RenderedBody
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse
from ksrv.server.rest.infer import InferResource


def takes_instances(spec: ModelSpec) -> bool:
    """Tell whether rows can become the inputs of a model: it declares them."""
    return bool(spec.inputs) and not spec.accepts_any_inputs


class PredictResource(InferResource):
    """POST /v1/models/{name}[/versions/{version} | /labels/{label}]:predict, and :explain."""

    stream_type = staticmethod(lambda accept: "")
    most_json = bodies.MOST_BYTES
    subject = bodies.REQUEST

    def wanted_body(
        self, req: falcon.Request, name: str = "", version: str = "", label: str = ""
    ) -> int:
        """See `InferenceResource.wanted_body`."""
        return super().wanted_body(req, name, find_version(self._engine, name, version, label))

    def on_post(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        name: str,
        version: str = "",
        label: str = "",
    ) -> None:
        """Answer a request."""
        super().on_post(req, resp, name, find_version(self._engine, name, version, label))

    def _parse(
        self, req: falcon.Request, body: memoryview, spec: ModelSpec, *, explain: bool, **given: Any
    ) -> InferRequest:
        headers = self._headers(req)
        request = bodies.parse_predict(
            body, req.get_header(HEADER_LENGTH), spec, self._limits, headers=headers
        )
        request.explain = explain
        return request

    def _render(
        self, request: InferRequest, memory: CallerMemory | None, response: InferResponse
    ) -> RenderedBody:
        return bodies.render_predict(response, request)

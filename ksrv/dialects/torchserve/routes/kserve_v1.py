"""KServe v1 for archives: the handler gets the JSON body undecoded, as over TorchServe's routes."""

from contextlib import suppress
from typing import Any

import falcon
import msgspec

from ksrv.dialects.kserve_v1 import predict
from ksrv.dialects.torchserve.calls import ROUTES_V1, TorchServeCall
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import takes_torchserve_requests
from ksrv.model.spec import ModelSpec
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.server.http.body import Bound
from ksrv.server.http.request_headers import request_headers

JSON = "application/json"
COUNTED_BYTES = 1024 * 1024
"""A longer body fills a batch by itself, because counting its instances would take many times its memory."""


class _Document(msgspec.Struct):
    instances: list[msgspec.Raw]


def _body_tensor(body: "bytes | memoryview", most: int) -> Tensor:
    """Return a body as an input with as many rows as the body has instances.

    The first row is the body, the others are empty: they only make the queue count the instances as rows of a batch.

    Args:
        most: How many rows a batch may have; 0 if requests are never joined.
    """
    rows = max(most, 1)
    if most > 1 and len(body) <= COUNTED_BYTES:
        with suppress(msgspec.DecodeError):  # the handler process answers with the error
            rows = max(len(msgspec.json.decode(body, type=_Document).instances), 1)
    return Tensor("body", "BYTES", (rows,), [body, *[b""] * (rows - 1)])


def takes_instances(spec: ModelSpec) -> bool:
    """Tell whether rows become the inputs of a model; an archive reads the body itself."""
    return predict.takes_instances(spec) and not takes_torchserve_requests(spec)


class PredictResource(predict.PredictResource):
    """POST /v1/models/{name}[/versions/{version}]:predict, and :explain.

    An archive reads the body itself, in its handler process.
    """

    def _bound(self, req: falcon.Request, spec: ModelSpec | None) -> Bound | None:
        """See `InferenceResource`. For an archive only the limit on all bodies applies."""
        archive = spec is not None and takes_torchserve_requests(spec)
        return None if archive else super()._bound(req, spec)

    def _parse(
        self, req: falcon.Request, body: memoryview, spec: ModelSpec, *, explain: bool, **given: Any
    ) -> InferRequest:
        if not takes_torchserve_requests(spec):
            return super()._parse(req, body, spec, explain=explain, **given)
        return InferRequest(
            spec.name,
            inputs=[_body_tensor(body, spec.max_batch_size)],
            headers=request_headers(
                req.env, with_credentials=not self._access.hides_tokens, spelling=str.title
            ),
            explain=explain,
            nbytes=len(body),
            dialect=ROUTES_V1,
            facts=TorchServeCall(content_types={"body": JSON}, explain=str(explain)),
        )

    def _send(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        request: InferRequest,
        response: InferResponse,
        memory: CallerMemory | None,
    ) -> None:
        if request.dialect:
            answers.send_answer(resp, response, req.env)
        else:
            super()._send(req, resp, request, response, memory)

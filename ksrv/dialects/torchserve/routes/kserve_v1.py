"""KServe's protocol v1 for archives: the JSON body goes to the handler as over TorchServe's own routes."""

from contextlib import suppress

import falcon
import msgspec

from ksrv.dialects.torchserve.calls import ROUTES_V1, TorchServeCall
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import takes_torchserve_requests
from ksrv.request import InferRequest, Tensor
from ksrv.server.http.body import expected_body, read_body
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.request_headers import request_headers
from ksrv.server.rest.infer import InferResource

JSON = "application/json"
COUNTED_BYTES = 1024 * 1024
"""A longer body fills a batch by itself: to count its instances would take many times its memory."""


class _Document(msgspec.Struct):
    instances: list[msgspec.Raw]


def _body_tensor(body: "bytes | memoryview", most: int) -> Tensor:
    """Return a body as an input that has a row for each of its instances; the first row holds the body.

    Args:
        most: How many rows a batch may have; 0 if requests are never joined.
    """
    rows = max(most, 1)
    if most > 1 and len(body) <= COUNTED_BYTES:
        with suppress(msgspec.DecodeError):  # the handler's process says what is wrong with it
            rows = max(len(msgspec.json.decode(body, type=_Document).instances), 1)
    return Tensor("body", "BYTES", (rows,), [body, *[b""] * (rows - 1)])


class PredictResource(InferResource):
    """POST /v1/models/{name}[/versions/{version}]:predict, and :explain.

    An archive reads the body itself, in its handler process. Other models get the rows of
    `ksrv.dialects.kserve_v1.bodies`.
    """

    def wanted_body(self, req: falcon.Request, name: str = "", version: str = "") -> int:
        """See `InferenceResource.wanted_body`: an archive takes bodies up to the limit on all."""
        if not takes_torchserve_requests(self._engine.find(name, version).spec):
            return super().wanted_body(req, name, version)
        with Reservation(self._budget) as reservation:
            return expected_body(
                req.env,
                self._limits,
                reservation,
                decompress=self._settings.decompress_requests,
            ).most

    def _run(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str, *, explain: bool
    ) -> None:
        target = self._engine.find(name, version)
        if not takes_torchserve_requests(target.spec):
            super()._run(req, resp, name, version, explain=explain)
            return
        with Reservation(self._budget) as reservation:
            body = read_body(
                req.env,
                self._limits,
                reservation,
                decompress=self._settings.decompress_requests,
                on_read=req.context.mark_reading,
            )
            if target.retired:
                target = self._engine.find(name, version)
            request = InferRequest(
                name,
                version,
                inputs=[_body_tensor(body, target.spec.max_batch_size)],
                headers=request_headers(
                    req.env, with_credentials=not self._access.hides_tokens, spelling=str.title
                ),
                explain=explain,
                nbytes=len(body),
                dialect=ROUTES_V1,
                facts=TorchServeCall(content_types={"body": JSON}, explain=str(explain)).facts(),
                target=target,
            )
            self._hand_over(req, request, reservation)
            response = self._infer(req, request)
        answers.send_answer(resp, response, self._budget, req.env)

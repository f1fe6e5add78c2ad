"""Resources that answer a JSON document, and the reader of the small documents of control calls."""

from collections.abc import Callable
from typing import Any

import falcon

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.server.http.answers import send_json
from ksrv.server.http.body import BodyReader, Bound
from ksrv.server.http.json_body import DOCUMENT_BYTES, document_too_large, parse_document
from ksrv.server.settings import ServerSettings


class DocumentReader:
    """Reads the JSON object of a control call.

    Args:
        settings: The limits.
        budget: The bytes in flight.
    """

    def __init__(self, settings: ServerSettings, budget: MemoryBudget) -> None:
        self._limits = settings.limits
        self._bodies = BodyReader(settings, budget)
        self._bound = Bound(DOCUMENT_BYTES, document_too_large)

    def wanted(self, req: falcon.Request) -> int:
        """Return the most bytes that a body may have.

        Raises:
            KsrvError: The head announces a body that will be refused.
        """
        return self._bodies.wanted(req.env, self._bound)

    def __call__(self, req: falcon.Request) -> Any:
        """Return the object.

        Raises:
            KsrvError: The body is not a JSON object, or too long.
        """
        with self._bodies.reserve() as reservation:
            body = self._bodies.read(req.env, reservation, bound=self._bound)
            return parse_document(body, self._limits)


class JsonResource:
    """Answers JSON documents.

    Args:
        get: Returns the answer to a GET; its keywords are the fields of the path. None if the resource takes no GET.
        post: Returns the answer to a POST; its first argument is the JSON object of the request.
        read_document: Reads the JSON object of a POST.
    """

    on_get: Callable[..., None]
    on_post: Callable[..., None]

    def __init__(
        self,
        get: Callable[..., object] | None = None,
        post: Callable[..., object] | None = None,
        read_document: Callable[[falcon.Request], Any] | None = None,
    ) -> None:
        self._get, self._post, self._read_document = get, post, read_document
        # Falcon answers 405 for a method that the resource has no function for.
        if get is not None:
            self.on_get = self._answer_get
        if post is not None:
            self.on_post = self._answer_post

    def _answer_get(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        assert self._get is not None, "the resource takes GET"
        send_json(resp, self._get(**fields))

    def _answer_post(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        assert self._post is not None and self._read_document is not None, "it takes POST"
        send_json(resp, self._post(self._read_document(req), **fields))

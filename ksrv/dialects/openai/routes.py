"""POST /v1/embeddings and /v1/rerank, for models with a `role:`.

One call becomes several inference requests of at most a batch each (`_ask`). A few of them are in the model's queue at
a time, and the calling thread waits for them in order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import falcon
import numpy as np
import numpy.typing as npt

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.openai.bodies import (
    EMBEDDINGS_OPERATION,
    IS_NO_CHAT,
    RERANK_OPERATION,
    EmbeddingsCall,
    RerankCall,
    embeddings_answer,
    error_document,
    read_embeddings,
    read_model,
    read_rerank,
    rerank_answer,
    shortened,
)
from ksrv.errors import BodyTooLarge, HandlerFailed, InvalidRequest, KsrvError, NotFound, quote
from ksrv.limits import show_limit
from ksrv.model.spec import ModelSpec
from ksrv.protocol.error_texts import read_json
from ksrv.request import InferRequest, InferResponse, RequestHandle, Tensor
from ksrv.server.call import Find, run_infer
from ksrv.server.http.answers import error_headers, send_json, set_fields
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.request_ids import REQUEST_ID
from ksrv.server.http.wsgi_calls import PendingCall
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import Needs

if TYPE_CHECKING:
    from ksrv.engine.model import ModelVersion

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
NOT_SERVED = ("/v1/chat/completions", "/v1/completions")
PATHS = frozenset((EMBEDDINGS, RERANK, *NOT_SERVED))
MOST_BYTES = 4 << 20
"""The most bytes of a body. It becomes Python objects, which take up to thirty times as much memory."""
MOST_UNDER_WAY = 16
"""The most requests of one call in the queue at a time, so that the queue has room for other clients."""
TOKENS = "tokens"
"""The output with which a handler reports the number of tokens of each row."""


class _RoleResource(InferenceResource):
    """The base of both routes: reads the body, checks the model's role, and runs the requests.

    Attributes:
        role: The role that a model must have.
    """

    most_json = MOST_BYTES
    subject = "a request for embeddings"
    role = ""

    def _document(self, req: falcon.Request, reservation: Reservation) -> Any:
        return read_json(self._body(req, reservation))

    def _check(self, spec: ModelSpec) -> None:
        if spec.role != self.role:
            has = f"has the role {spec.role!r}" if spec.role else "has no role"
            raise InvalidRequest(
                f"the model {quote(spec.name)} {has}; models with 'role: {self.role}' in model.yaml answer here"
            )

    def _ask(
        self,
        req: falcon.Request,
        name: str,
        read: Callable[[ModelSpec], Sequence[Sequence[Tensor]]],
    ) -> tuple[ModelSpec, list[InferResponse]]:
        """Run the requests of one call, some in parallel. The first failure, or a disconnect, cancels the others.

        Args:
            name: The model's name.
            read: Returns the inputs of each request. It is called with the model's description.

        Returns:
            The model's description, and the response of each request.
        """
        requests: deque[InferRequest] = deque()
        target: ModelVersion

        def read_first(find: Find) -> InferRequest:
            """Find the model, make all requests, and return the first."""
            nonlocal target
            target = find(name, "")
            self._check(target.spec)
            for inputs in read(target.spec):
                request = InferRequest(name, inputs=list(inputs), headers=self._headers(req))
                request.target = target
                request.nbytes = sum(tensor.nbytes for tensor in inputs)
                requests.append(request)
            authorization = req.get_header("Authorization")
            # Counts once in the client's limits.
            requests[0].client = self._access.client_of(authorization)
            return requests.popleft()

        answers: list[InferResponse] = []
        waiting = deque([self._start(req, read_first)])
        most = min(MOST_UNDER_WAY, target.config.queue_size)
        try:
            while waiting:
                while requests and len(waiting) < most:
                    waiting.append(self._start(req, lambda find: requests.popleft()))
                answers.append(waiting.popleft().wait())
            return target.spec, answers
        finally:
            for call in waiting:
                call.cancel()  # does nothing if the call has ended

    def _start(self, req: falcon.Request, read: Callable[[Find], InferRequest]) -> "_Part":
        call = _Part(req.env, read)
        # Queues the request, or stores an error in the call, which `check` raises.
        run_infer(call, self._engine, waits=True)
        call.check()
        return call


class _Part(PendingCall):
    """One of the requests of a call.

    A connection can watch one request only. So the client is watched for the request that the thread waits for, and a
    disconnect cancels this request; `_ask` then cancels the others.
    """

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        self.handle = handle

    def wait(self) -> InferResponse:
        """Return the response once the request has ended.

        Raises:
            KsrvError: The request failed.
        """
        if self.handle is not None:
            super().watch(self.handle)
        self.first()  # returns when the request has ended, because it does not stream
        return self.response()


class EmbeddingsResource(_RoleResource):
    """POST /v1/embeddings."""

    role = "embedding"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a vector for each text."""
        with self._bodies.reserve() as reservation:
            document = self._document(req, reservation)

            call: EmbeddingsCall

            def read(spec: ModelSpec) -> list[list[Tensor]]:
                nonlocal call
                call = read_embeddings(document)
                return _embedding_batches(call, spec)

            spec, answers = self._ask(req, read_model(document), read)
        parts = [_floats(answer, spec) for answer in answers]
        widths = {part.shape[1:] for part in parts}
        if (
            any(part.ndim != 2 for part in parts)
            or len(widths) > 1
            or sum(map(len, parts)) != len(call.input)
        ):
            shapes = " and ".join(dict.fromkeys(str(list(part.shape)) for part in parts))
            raise HandlerFailed(
                f"the model {spec.name} answered vectors of the shape {shapes} for "
                f"{len(call.input)} texts; an embedding is a row [dimensions] for each"
            )
        vectors = np.concatenate(parts)
        _check_finite(vectors, spec, "a vector")
        send_json(
            resp, embeddings_answer(call, shortened(vectors, call.dimensions), _tokens(answers))
        )


class RerankResource(_RoleResource):
    """POST /v1/rerank."""

    role = "rerank"
    subject = "a request to rerank"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the documents, the most relevant first."""
        with self._bodies.reserve() as reservation:
            document = self._document(req, reservation)

            call: RerankCall

            def read(spec: ModelSpec) -> list[list[Tensor]]:
                nonlocal call
                call = read_rerank(document)
                nbytes = sum(map(len, call.texts)) + len(call.query) * len(call.documents)
                if nbytes > self._limits.json:
                    raise BodyTooLarge(
                        f"the query is read with each of the {len(call.documents)} documents, which makes "
                        f"{nbytes} characters, above the {show_limit('json', self._limits.json)}"
                    )
                return _pairs(call, spec)

            spec, answers = self._ask(req, read_model(document), read)
        scores = np.concatenate([_floats(answer, spec).reshape(-1) for answer in answers])
        if len(scores) != len(call.documents):
            raise HandlerFailed(
                f"the model {spec.name} answered {len(scores)} scores for {len(call.documents)} documents"
            )
        _check_finite(scores, spec, "a score")
        request_id = str(req.env.get(REQUEST_ID, ""))
        send_json(resp, rerank_answer(call, scores.tolist(), _tokens(answers), request_id))


class NoChatResource:
    """POST /v1/chat/completions and /v1/completions: refused, with a text about what ksrv serves."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Refuse the request.

        Raises:
            NotFound: Always.
        """
        raise NotFound(IS_NO_CHAT)


def add_routes(app: Any, parts: AppParts) -> None:
    """Add the routes to the app."""
    for path, kind, operation in (
        (EMBEDDINGS, EmbeddingsResource, EMBEDDINGS_OPERATION),
        (RERANK, RerankResource, RERANK_OPERATION),
    ):
        resource = kind(parts)
        app.add_route(path, resource, needs=Needs.TOKEN, described={"post": operation})
    for path in NOT_SERVED:
        app.add_route(path, NoChatResource(), needs=Needs.TOKEN)
    parts.error_forms.append(send_openai_error)


def send_openai_error(
    req: falcon.Request,
    resp: falcon.Response,
    error: KsrvError | falcon.HTTPError,
    unexpected: bool,
) -> bool:
    """Answer a failure on these routes in OpenAI's form; see `ksrv.dialects.dialect.ErrorForm`."""
    if req.path not in PATHS or isinstance(error, falcon.HTTPError):
        return False
    send_json(resp, error_document(error), int(error.http_status))
    set_fields(resp, error_headers(error))
    return True


def _text_input(spec: ModelSpec, names: Sequence[str]) -> str:
    """Return the model's text input: the first of `names` that it has, else its last BYTES input."""
    texts = [entry.name for entry in spec.inputs if entry.datatype == "BYTES"]
    found = next((name for name in names if name in texts), texts[-1] if texts else "")
    if not found:
        raise InvalidRequest(f"the model {quote(spec.name)} has no input for texts (BYTES)")
    return found


def _shape(spec: ModelSpec, name: str, rows: int) -> tuple[int, ...]:
    """Return the shape of a text in each row, with the declared number of dimensions: [rows] or [rows, 1]."""
    declared = spec.input(name)
    rank = 1 if declared is None else len(declared.shape)
    return (rows, *[1] * (rank - 1))


def _texts(spec: ModelSpec, name: str, texts: Sequence[bytes]) -> Tensor:
    return Tensor(name, "BYTES", _shape(spec, name, len(texts)), list(texts))


def _parts(count: int, spec: ModelSpec) -> list[slice]:
    """Divide `count` rows into parts of at most a batch."""
    most = spec.max_batch_size or 1
    return [slice(start, min(start + most, count)) for start in range(0, count, most)]


def _embedding_batches(call: EmbeddingsCall, spec: ModelSpec) -> list[list[Tensor]]:
    """Return the inputs of each request. Token ids have different lengths, so each list is a separate request."""
    texts = [text.encode() for text in call.input if isinstance(text, str)]
    if texts:
        name = _text_input(spec, ("text", "texts"))
        return [[_texts(spec, name, texts[part])] for part in _parts(len(texts), spec)]
    ids = next((entry for entry in spec.inputs if entry.datatype in ("INT64", "INT32")), None)
    if ids is None:
        raise InvalidRequest(f"the model {quote(spec.name)} takes texts, and 'input' has token ids")
    dtype = np.int64 if ids.datatype == "INT64" else np.int32
    return [
        [Tensor(ids.name, ids.datatype, (1, len(part)), np.array([part], dtype))]
        for part in call.input
    ]


def _pairs(call: RerankCall, spec: ModelSpec) -> list[list[Tensor]]:
    """Return the inputs of each request: the query in every row, and a document in each row."""
    query, text = _text_input(spec, ("query",)), _text_input(spec, ("text", "document"))
    if query == text:
        raise InvalidRequest(
            f"the model {quote(spec.name)} needs two inputs for texts, query and text, and has {query}"
        )
    asked, documents = call.query.encode(), [text.encode() for text in call.texts]
    return [
        [
            _texts(spec, query, [asked] * len(documents[part])),
            _texts(spec, text, documents[part]),
        ]
        for part in _parts(len(documents), spec)
    ]


def _floats(answer: InferResponse, spec: ModelSpec) -> npt.NDArray[np.float32]:
    """Return the first output of floats: the vectors or the scores."""
    for tensor in answer.outputs:
        if tensor.datatype in ("FP32", "FP64", "FP16") and isinstance(tensor.data, np.ndarray):
            return tensor.data.astype(np.float32)
    raise HandlerFailed(f"the model {spec.name} answered no output of FP32, FP16 or FP64")


def _check_finite(values: npt.NDArray[np.float32], spec: ModelSpec, what: str) -> None:
    """Refuse an answer with NaN or infinity, which JSON cannot represent. NaN also cannot be sorted."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0, 0])
        raise HandlerFailed(
            f"the model {spec.name} answered {what} that is NaN or infinite for the text at {row}"
        )


def _tokens(answers: Sequence[InferResponse]) -> int:
    """Return the number of tokens of all rows; 0 if the handler does not report it."""
    total = 0
    for answer in answers:
        for tensor in answer.outputs:
            if tensor.name == TOKENS and isinstance(tensor.data, np.ndarray):
                total += int(tensor.data.sum())
    return total

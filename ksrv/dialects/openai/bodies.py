"""The JSON of OpenAI's embeddings and of the rerank services of Cohere and Jina: requests, answers, errors."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from ksrv.errors import InvalidRequest, KsrvError
from ksrv.protocol.documents import read_document
from ksrv.protocol.openapi import Operation

MOST_INPUTS = 2048
"""The most texts of one request, as in OpenAI's API."""
MOST_TOKENS = 1_000_000
LARGEST_TOKEN = 2**31 - 1
IS_NO_CHAT = (
    "ksrv serves models that are not chat models: encoders, classifiers, detectors, pipelines. It has /v1/embeddings and "
    "/v1/rerank; for chat and completions use a server of language models"
)


class RoleCall(msgspec.Struct, frozen=True):
    """The field that all requests have: the model, which must have the role of the route."""

    model: Annotated[str, Meta(min_length=1)]


class EmbeddingsCall(RoleCall, frozen=True, kw_only=True):
    """A request for embeddings.

    Attributes:
        input: Texts, or the token ids of texts.
        encoding_format: "base64": the answer has each vector as the base64 of its float32 bytes.
        dimensions: How many values of each vector the answer has; None for all.
    """

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class TextDocument(msgspec.Struct, frozen=True):
    """A document that is an object instead of a text."""

    text: str


class RerankCall(RoleCall, frozen=True, kw_only=True):
    """A request to order documents by their relevance to a query.

    Attributes:
        top_n: How many documents the answer has; None for all.
        return_documents: Whether the answer also has their texts.
    """

    query: str
    documents: Annotated[list[str | TextDocument], Meta(min_length=1, max_length=MOST_INPUTS)]
    top_n: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [item if isinstance(item, str) else item.text for item in self.documents]


class Failure(TypedDict):
    """An error, for the OpenAPI description: an object in OpenAI's form.

    Errors that any route can return, such as the error for a missing token, are texts.
    """

    error: str | dict[str, Any]


EMBEDDINGS_OPERATION = Operation("Vectors of texts", "openai", dict, EmbeddingsCall, Failure)
RERANK_OPERATION = Operation("Documents by a query", "openai", dict, RerankCall, Failure)


def read_model(document: Any) -> str:
    """Return the model's name.

    Raises:
        InvalidRequest: The body is not an object, or has no model.
    """
    return read_document(document, RoleCall).model


def read_embeddings(document: Any) -> EmbeddingsCall:
    """Read an embeddings request. Its `input` becomes a list of texts, or a list of lists of token ids.

    Raises:
        InvalidRequest: A field is missing or wrong.
    """
    call = read_document(document, EmbeddingsCall)
    given = call.input
    if isinstance(given, str) or _is_tokens(given):
        given = [given]
    if not 0 < len(given) <= MOST_INPUTS:
        raise InvalidRequest(
            f"'input' has {len(given)} entries; a request has from 1 to {MOST_INPUTS}"
        )
    for index, item in enumerate(given):
        if not isinstance(item, (str, list)) or type(item) is not type(given[0]):
            raise InvalidRequest(
                f"'input' has a {type(item).__name__} at {index}; all entries are texts, or all are lists of token ids"
            )
        if isinstance(item, list) and not _is_tokens(item):
            raise InvalidRequest(
                f"'input' has no token ids at {index}: a list of whole numbers from 0 to {LARGEST_TOKEN}, which is not empty"
            )
    _check_texts("input", given)
    if sum(map(len, given)) > MOST_TOKENS and isinstance(given[0], list):
        raise InvalidRequest(f"'input' has more than {MOST_TOKENS} token ids")
    return msgspec.structs.replace(call, input=given)


def _is_tokens(ids: Any) -> bool:
    return bool(ids) and all(type(token) is int and 0 <= token <= LARGEST_TOKEN for token in ids)


def _check_texts(key: str, texts: Sequence[object]) -> None:
    if "" in texts:
        raise InvalidRequest(f"'{key}' has an empty text at {texts.index('')}")


def read_rerank(document: Any) -> RerankCall:
    """Read a rerank request.

    Raises:
        InvalidRequest: A field is missing or wrong.
    """
    call = read_document(document, RerankCall)
    _check_texts("query", [call.query])
    _check_texts("documents", call.texts)
    return call


def embeddings_answer(
    call: EmbeddingsCall, vectors: npt.NDArray[np.float32], tokens: int
) -> dict[str, Any]:
    """Return the answer to an embeddings request.

    Args:
        vectors: [inputs, dimensions].
        tokens: How many tokens the inputs had.
    """
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _vector(vector, call.encoding_format == "base64"),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": call.model, "usage": usage}


def _vector(vector: npt.NDArray[np.float32], as_base64: bool) -> str | npt.NDArray[np.float32]:
    """Return one vector for JSON: base64, or an array, because a list of floats would take six times the memory."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.ascontiguousarray(vector)


def shortened(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return the first `dimensions` values of each vector. If the vectors have length 1, so have the results.

    Raises:
        InvalidRequest: The vectors have fewer dimensions.
    """
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    if dimensions > vectors.shape[1]:
        raise InvalidRequest(
            f"'dimensions' is {dimensions}, and the model's vectors have {vectors.shape[1]} values"
        )
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(vectors, axis=1)
    if np.allclose(lengths, 1.0, atol=1e-3):
        cut = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
    return cut


def rerank_answer(
    call: RerankCall, scores: Sequence[float], tokens: int, request_id: str
) -> dict[str, Any]:
    """Return the answer to a rerank request, with the most relevant documents first.

    Args:
        scores: The relevance of each document.
        tokens: How many tokens the query and the documents had together.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: call.top_n]
    results: list[dict[str, Any]] = []
    for index in order:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if call.return_documents:
            result["document"] = {"text": call.texts[index]}
        results.append(result)
    return {
        "id": request_id,
        "object": "list",
        "model": call.model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "1"}, "tokens": {"input_tokens": tokens}},
    }


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_document(error: KsrvError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    status = int(error.http_status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": None,
            "code": error.reason or kind,
        }
    }

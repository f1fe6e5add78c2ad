"""The JSON of OpenAI's embeddings and of the rerank services of Cohere and Jina: requests, answers, errors."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from ksrv.errors import InvalidRequest, KsrvError, quote
from ksrv.protocol.openapi import Operation

MOST_INPUTS = 2048
"""Texts of one request, as in OpenAI's API."""
MOST_TOKENS = 1_000_000
LARGEST_TOKEN = 2**31 - 1
IS_NO_CHAT = (
    "ksrv serves models that are not chat models: encoders, classifiers, detectors, pipelines. It has /v1/embeddings and "
    "/v1/rerank; for chat and completions use a server of language models"
)

Texts = list[str] | list[list[int]]


class EmbeddingsBody(TypedDict):
    """The required fields of a request for embeddings."""

    model: str
    input: str | list[Any]


class RerankBody(TypedDict):
    """The required fields of a request to rerank."""

    model: str
    query: str
    documents: list[Any]


class Failure(TypedDict):
    """An error: in OpenAI's form, or in ksrv's if it is one of every route, such as a missing token."""

    error: str | dict[str, Any]


EMBEDDINGS_OPERATION = Operation("Vectors of texts", "openai", dict, EmbeddingsBody, Failure)
RERANK_OPERATION = Operation("Documents by a query", "openai", dict, RerankBody, Failure)


@dataclass(frozen=True)
class EmbeddingsCall:
    """A request for embeddings.

    Attributes:
        inputs: Texts, or the token ids of texts.
        as_base64: Whether vectors are answered as the base64 of their float32 bytes.
        dimensions: How many values of each vector are answered; None for all.
    """

    model: str
    inputs: Texts
    as_base64: bool = False
    dimensions: int | None = None


@dataclass(frozen=True)
class RerankCall:
    """A request to order documents by what they have to do with a query.

    Attributes:
        top: How many are answered.
        return_documents: Whether their texts are answered too.
    """

    model: str
    query: str
    documents: list[str] = field(default_factory=list)
    top: int = 0
    return_documents: bool = False


def read_model(document: Any) -> str:
    """Return the model's name.

    Raises:
        InvalidRequest: The body is no object, or names no model.
    """
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must be the name of a model")
    return model


def read_embeddings(document: Mapping[str, Any]) -> EmbeddingsCall:
    """Return what the body of an embeddings request asks for.

    Raises:
        InvalidRequest: A field is missing or wrong.
    """
    form = document.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise InvalidRequest(f"'encoding_format' must be 'float' or 'base64', not {quote(form)}")
    dimensions = document.get("dimensions")
    if dimensions is not None and not _is_whole(dimensions, 1, 1_000_000):
        raise InvalidRequest(f"'dimensions' must be a whole number from 1, not {quote(dimensions)}")
    if "input" not in document:
        raise InvalidRequest("'input' is missing: a text, token ids, or a list of either")
    inputs = _inputs(document["input"])
    return EmbeddingsCall(read_model(document), inputs, form == "base64", dimensions)


def _inputs(given: Any) -> Texts:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise InvalidRequest(
            "'input' must be a text, token ids, or a list of either, and not empty"
        )
    if _is_tokens(given):
        given = [given]
    if len(given) > MOST_INPUTS:
        raise InvalidRequest(f"'input' has {len(given)} entries; a request may have {MOST_INPUTS}")
    for index, one in enumerate(given):
        if not isinstance(one, (str, list)) or type(one) is not type(given[0]):
            raise InvalidRequest(
                f"'input' has a {type(one).__name__} at {index}; all entries are texts, or all are lists of token ids"
            )
        if isinstance(one, list) and not _is_tokens(one):
            raise InvalidRequest(
                f"'input' has no token ids at {index}: a list of whole numbers from 0 to {LARGEST_TOKEN}, which is not empty"
            )
        if isinstance(one, str):
            _check_text("input", index, one)
    if sum(map(len, given)) > MOST_TOKENS and isinstance(given[0], list):
        raise InvalidRequest(f"'input' has more than {MOST_TOKENS} token ids")
    texts: Texts = given
    return texts


def _is_tokens(value: Any) -> bool:
    return bool(value) and all(_is_whole(one, 0, LARGEST_TOKEN) for one in value)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _check_text(key: str, index: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"'{key}' has half of a surrogate pair in the text at {index}, which UTF-8 cannot express"
        ) from None
    if not text:
        raise InvalidRequest(f"'{key}' has an empty text at {index}")


def read_rerank(document: Mapping[str, Any]) -> RerankCall:
    """Return what the body of a rerank request asks for; documents are texts, or objects with a `text`.

    Raises:
        InvalidRequest: A field is missing or wrong.
    """
    query, documents = document.get("query"), document.get("documents")
    if not isinstance(query, str):
        raise InvalidRequest("'query' must be a text")
    _check_text("query", 0, query)
    if not isinstance(documents, list) or not documents:
        raise InvalidRequest("'documents' must be a list of texts, and not empty")
    if len(documents) > MOST_INPUTS:
        raise InvalidRequest(
            f"'documents' has {len(documents)} entries; a request may have {MOST_INPUTS}"
        )
    texts = []
    for index, one in enumerate(documents):
        text = one.get("text") if isinstance(one, dict) else one
        if not isinstance(text, str):
            raise InvalidRequest(
                f"'documents' has no text at {index}: a text, or an object with a 'text'"
            )
        _check_text("documents", index, text)
        texts.append(text)
    top = document.get("top_n")
    if top is not None and not _is_whole(top, 1, 2**31):
        raise InvalidRequest(f"'top_n' must be a whole number from 1, not {quote(top)}")
    wanted = document.get("return_documents", False)
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequest(f"'return_documents' must be true or false, not {quote(wanted)}")
    top = len(texts) if top is None else min(top, len(texts))
    return RerankCall(read_model(document), query, texts, top, bool(wanted))


def embeddings_answer(
    call: EmbeddingsCall, vectors: npt.NDArray[np.float32], tokens: int
) -> dict[str, Any]:
    """Return the answer to an embeddings request.

    Args:
        vectors: [inputs, dimensions].
        tokens: How many tokens the inputs had.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, call.as_base64)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": call.model, "usage": usage}


def _vector(vector: npt.NDArray[np.float32], as_base64: bool) -> str | npt.NDArray[np.float32]:
    """Return one vector; JSON is written of the array, whose numbers as Python's would take six times the memory."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.ascontiguousarray(vector)


def shortened(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return the first values of each vector, of the vector's length before where that was 1.

    Raises:
        InvalidRequest: The vectors have fewer.
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
    """Return the answer to a rerank request: the best documents first.

    Args:
        scores: One for each document.
        tokens: How many tokens the pairs had.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: call.top]
    results: list[dict[str, Any]] = []
    for index in order:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if call.return_documents:
            result["document"] = {"text": call.documents[index]}
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
    """Return a failure in OpenAI's form."""
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

"""Requests to every REST route that infers, for models with the BYTES input `text`."""

from typing import Any

import requests

from ksrv.testing import Server


def infer_body(
    *texts: str, parameters: dict[str, Any] | None = None, **output: Any
) -> dict[str, Any]:
    """Return the body of an infer request: a row for each text, by default "hi".

    Args:
        parameters: The parameters of the request.
        output: The parameters of the output `output`.
    """
    texts = texts or ("hi",)
    body: dict[str, Any] = {
        "inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]
    }
    if output:
        body["outputs"] = [{"name": "output", "parameters": output}]
    if parameters:
        body["parameters"] = parameters
    return {"json": body}


FORM = {"files": {"text": (None, "hi")}}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "infer": ("/v2/models/{}/infer", infer_body()),
    "a form": ("/v2/models/{}/infer", FORM),
    "raw": ("/v2/models/{}/infer", {"data": b"hi", "headers": {"Inference-Header-Content-Length": "0"}}),
    "generate": ("/v2/models/{}/generate", {"json": {"text": "hi"}}),
    "v1": ("/v1/models/{}:predict", {"json": {"instances": ["hi"]}}),
}  # fmt: skip


def post(server: Server, route: str, model: str, accept: str | None = None) -> requests.Response:
    """Send the text "hi" to a model; None sends no Accept header."""
    path, body = ROUTES[route]
    headers = {"Accept": accept, **body.get("headers", {})}
    return requests.post(server.url + path.format(model), **body | {"headers": headers}, timeout=60)

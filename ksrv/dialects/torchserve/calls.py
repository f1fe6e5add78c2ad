"""The names of TorchServe's dialects, and the facts that its routes and its runner exchange besides tensors and headers.

The routes run in the worker, the runner in the handler process. The engine carries the facts between them without
reading them, in `InferRequest.facts` and `ExecutorOutputs.facts`.
"""

from typing import TypedDict

FORMAT = "torchserve"
"""The name under which `ModelConfig.dialect` has an archive's manifest and model-config.yaml."""
RUNNER = "ksrv.dialects.torchserve.runner.runner:TorchServeRunner"
"""The runner of archives and of handlers that import `ts`."""
KSERVE_V2 = "kservev2"
"""The envelope of archives whose handlers take KServe v2 requests themselves."""
ROUTES = FORMAT
"""The dialect of TorchServe's own routes."""
ROUTES_V1 = "torchserve-v1"
"""The dialect of KServe's protocol v1, whose body is a JSON document that the handler reads."""


class TorchServeCall(TypedDict, total=False):
    """The facts of a request, besides its headers; empty over KServe v2.

    Attributes:
        content_types: The content types of the request's parts, by the names of the parts.
        explain: The handler's request header `explain`, if the route sets it.
        url_path: The handler's request header `url_path`, if the route sets it.
        describe: Whether the client asks for the handler's description of its model.
    """

    content_types: dict[str, str]
    explain: str
    url_path: str
    describe: bool


class TorchServeAnswer(TypedDict, total=False):
    """The facts of an answer.

    Attributes:
        content_type: The content type that fits the handler's item.
        status: The status line that the handler set, "404 Not Found", if it set one.
    """

    content_type: str
    status: str

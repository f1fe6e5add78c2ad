"""The parts of a request over TorchServe's routes, and of its answer, besides tensors and headers.

The engine carries both as the opaque facts of a dialect (`InferRequest.facts`, `ExecutorOutputs.facts`); the routes write
and read them here, and so does the handler's process.
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
    """The facts of a request, beside its headers; empty over KServe v2.

    Attributes:
        content_types: The content types of its parts, by their names.
        explain: The handler's request header `explain`, if the route sets it.
        url_path: The handler's request header `url_path`, if the route sets it.
        describe: Whether the client asks for the handler's description of its model.
    """

    content_types: dict[str, str]
    explain: str
    url_path: str
    describe: bool


class TorchServeAnswer(TypedDict, total=False):
    """The head of an answer.

    Attributes:
        content_type: The content type that fits the handler's item.
        status: The status line that the handler set, "404 Not Found", if it set one.
    """

    content_type: str
    status: str

"""The parts of a request over TorchServe's routes, and of its answer, besides tensors and headers.

The engine carries both as the opaque facts of a dialect (`InferRequest.facts`, `ExecutorOutputs.facts`); the routes write
and read them here, and so does the handler's process.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ksrv.request import RequestPart

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


class TorchServeCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a request, beside its headers.

    Attributes:
        content_types: The content types of its parts, by their names.
        explain: The handler's request header `explain`; None on routes that do not set it.
        url_path: The handler's request header `url_path`; None on routes that do not set it.
        describe: Whether the client asks for the handler's description of its model.
    """

    content_types: dict[str, str] = {}
    explain: str | None = None
    url_path: str | None = None
    describe: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the call as the engine carries it."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts

    @staticmethod
    def of(request: RequestPart) -> "TorchServeCall | None":
        """Return the facts of a request of a batch; None over KServe v2."""
        if request.dialect not in (ROUTES, ROUTES_V1):
            return None
        return msgspec.convert(request.facts, TorchServeCall)


class TorchServeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The head of an answer.

    Attributes:
        content_type: The content type that fits the handler's item.
        status: The status line that the handler set, "404 Not Found"; "" where it set none.
    """

    content_type: str = ""
    status: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the head as the engine carries it."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "TorchServeAnswer":
        """Return the head that `facts` wrote."""
        return msgspec.convert(facts, TorchServeAnswer)

"""The REST routes and the gRPC calls of all extensions."""

from functools import partial
from typing import TYPE_CHECKING, Any

from ksrv.dialects.triton.extensions import descriptions
from ksrv.dialects.triton.extensions.changeable_settings import ChangeableSettings
from ksrv.dialects.triton.extensions.generate import routes as generate
from ksrv.dialects.triton.extensions.model_repository import ModelRepository
from ksrv.dialects.triton.extensions.shared_memory import calls as shared_memory
from ksrv.dialects.triton.extensions.shared_memory.tensors import ServerMemory
from ksrv.dialects.triton.extensions.streams import StreamCalls
from ksrv.protocol.protobuf import INFERENCE
from ksrv.server.grpc import limits as bounds
from ksrv.server.rest.json_resource import JsonResource
from ksrv.server.rest.route_guard import Needs
from ksrv.server.shared.parts import ServerParts
from ksrv.shadow.promotion import PROMOTE, PROMOTE_PATH, promote

if TYPE_CHECKING:
    import falcon

    from ksrv.dialects.dialect import AppParts
    from ksrv.server.grpc.services import Method, Services


def add_routes(app: "falcon.App[Any, Any]", parts: "AppParts") -> None:
    """Add the REST routes to an app."""
    generate.add_routes(app, parts)
    descriptions.add_routes(app, parts)
    ModelRepository(parts.engine).add_routes(app, parts.read_document)
    promotion = JsonResource(
        None, partial(promote, parts.engine, parts.statistics), parts.read_document
    )
    app.add_route(PROMOTE_PATH, promotion, needs=Needs.CONTROL, described={"post": PROMOTE})
    ChangeableSettings(parts).add_routes(app, parts.read_document)
    if (memory := _memory(parts)) is not None:
        shared_memory.add_routes(app, memory, parts.read_document, parts.access)


def grpc_methods(services: "Services") -> "dict[str, Method]":
    """Return the gRPC methods by path."""
    parts = services.parts
    repository = ModelRepository(parts.engine)
    control = {
        **repository.calls(),
        **ChangeableSettings(parts).calls(),
        **shared_memory.calls(_memory(parts), parts.access),
    }
    streams = StreamCalls(services.calls, parts.engine, services.pool("read", bounds.MAX_STREAMS))
    services.on_stop.append(streams.close)
    others = {"RepositoryIndex": repository.index_call, **descriptions.calls(parts)}
    pool = services.pool("control", bounds.CONTROL_THREADS)
    return {
        **services.unary(INFERENCE, control, pool, control=True),
        **services.unary(INFERENCE, others, services.call_pool),
        f"/{INFERENCE}/ModelStreamInfer": services.stream(streams.stream),
    }


def _memory(parts: ServerParts) -> ServerMemory | None:
    """Return the regions of shared memory; None if shared memory is off or belongs to another dialect."""
    memory = parts.shared_memory
    return memory if isinstance(memory, ServerMemory) else None

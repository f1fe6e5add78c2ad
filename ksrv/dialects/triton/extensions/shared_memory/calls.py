"""The calls that register regions of shared memory, of the system and of CUDA, in both protocols."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

import falcon
import msgspec

from ksrv._native.grpc.grpc_call import Call
from ksrv.dialects.triton.extensions.shared_memory.regions import CudaMemory, MemoryUser, Regions
from ksrv.dialects.triton.extensions.shared_memory.tensors import ServerMemory
from ksrv.errors import NotImplementedByKsrv
from ksrv.protocol.documents import Unsigned, read_document
from ksrv.protocol.protobuf import message_class
from ksrv.server.credentials import Access
from ksrv.server.grpc.calls import Behavior
from ksrv.server.grpc.calls import control_user as grpc_user
from ksrv.server.http.answers import send_json
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import Needs
from ksrv.server.rest.route_guard import control_user as rest_user

MemoryUserOf: TypeAlias = Callable[[Call], MemoryUser | None]


class RegisterRequest(msgspec.Struct):
    """A region of shared memory."""

    key: str
    byte_size: Unsigned
    offset: Unsigned = 0


class RegisterResource:
    """POST /v2/systemsharedmemory/region/{region}/register."""

    def __init__(self, memory: ServerMemory, reader: DocumentReader, access: Access) -> None:
        self._memory = memory
        self._reader = reader
        self._access = access

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str) -> None:
        """Register a region."""
        user = self._memory.memory_user(rest_user(self._access, req.env))
        wanted = read_document(self._reader(req), RegisterRequest)
        self._memory.regions.register(region, wanted.key, wanted.offset, wanted.byte_size, user)
        send_json(resp, {})


def _status(regions: Regions | CudaMemory, region: str = "") -> list[dict[str, Any]]:
    return [asdict(found) for found in regions.status(region)]


def _unregister(
    regions: Regions | CudaMemory, document: object, region: str = ""
) -> dict[str, Any]:
    regions.unregister(region)
    return {}


def _refuse_cuda(document: object, region: str) -> None:
    CudaMemory().register(region)


def add_routes(
    app: "falcon.App[Any, Any]", memory: ServerMemory, reader: DocumentReader, access: Access
) -> None:
    """Add the REST routes to an app."""
    for prefix, known, register in (
        ("/v2/systemsharedmemory", memory.regions, RegisterResource(memory, reader, access)),
        ("/v2/cudasharedmemory", CudaMemory(), JsonResource(None, _refuse_cuda, reader)),
    ):
        status = JsonResource(partial(_status, known))
        unregister = JsonResource(None, partial(_unregister, known), reader)
        for path, resource in (
            ("/status", status),
            ("/region/{region}/status", status),
            ("/region/{region}/register", register),
            ("/unregister", unregister),
            ("/region/{region}/unregister", unregister),
        ):
            app.add_route(prefix + path, resource, needs=Needs.CONTROL)


def calls(memory: ServerMemory | None, access: Access) -> dict[str, Behavior]:
    """Return the gRPC calls by their names; they refuse if shared memory is off."""
    found: dict[str, Behavior] = {}
    for kind in ("System", "Cuda"):
        if memory is None:
            made: dict[str, Behavior] = dict.fromkeys(("Status", "Register", "Unregister"), _refuse)
        elif kind == "Cuda":
            made = _calls(kind, CudaMemory(), lambda call: None)
        else:
            made = _calls(
                kind, memory.regions, lambda call: memory.memory_user(grpc_user(access, call))
            )
        found |= {f"{kind}SharedMemory{name}": behavior for name, behavior in made.items()}
    return found


def _calls(
    kind: str, regions: Regions | CudaMemory, memory_user: MemoryUserOf
) -> dict[str, Behavior]:
    """Return the calls of a kind of shared memory."""

    def made(call: str) -> Any:
        return message_class(f"inference.{kind}SharedMemory{call}Response")()

    def status(request: Any, call: Call) -> Any:
        answer = made("Status")
        for found in regions.status(request.name):
            entry = answer.regions[found.name]
            entry.name, entry.key = found.name, found.key
            entry.offset, entry.byte_size = found.offset, found.byte_size
        return answer

    def register(request: Any, call: Call) -> Any:
        if isinstance(regions, CudaMemory):
            regions.register(request.name)
        place = request.offset, request.byte_size
        regions.register(request.name, request.key, *place, memory_user(call))
        return made("Register")

    def unregister(request: Any, call: Call) -> Any:
        regions.unregister(request.name)
        return made("Unregister")

    return {"Status": status, "Register": register, "Unregister": unregister}


def _refuse(request: Any, call: Call) -> Any:
    raise NotImplementedByKsrv("shared memory is off; --allow-shared-memory switches it on")

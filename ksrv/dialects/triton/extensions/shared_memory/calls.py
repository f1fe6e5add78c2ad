"""The calls that register, list and unregister regions of shared memory, over REST and gRPC.

CUDA regions are answered as Triton answers without GPUs: none can be registered, so their list is always empty.
"""

from functools import partial
from typing import Any, NoReturn

import falcon
import msgspec

from ksrv._native.grpc.grpc_call import Call
from ksrv.dialects.triton.extensions.shared_memory.regions import Regions
from ksrv.dialects.triton.extensions.shared_memory.tensors import ServerMemory
from ksrv.errors import InvalidRequest, NotImplementedByKsrv, quote
from ksrv.protocol.documents import Unsigned, read_document
from ksrv.protocol.metadata import to_message
from ksrv.protocol.protobuf import message_class
from ksrv.server.credentials import Access
from ksrv.server.grpc.calls import Behavior
from ksrv.server.grpc.calls import control_user as grpc_user
from ksrv.server.http.answers import send_json
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import Needs
from ksrv.server.rest.route_guard import control_user as rest_user


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
        # The region is opened with the rights of this user.
        user = self._memory.memory_user(rest_user(self._access, req.env))
        wanted = read_document(self._reader(req), RegisterRequest)
        self._memory.regions.register(region, wanted.key, wanted.offset, wanted.byte_size, user)
        send_json(resp, {})


def _unregister(regions: Regions, document: object, region: str = "") -> dict[str, Any]:
    """Unregister a region, or all regions if no name is given."""
    regions.unregister(region)
    return {}


def _refuse_cuda(region: str) -> NoReturn:
    """Refuse to register a CUDA region. Other CUDA calls succeed, because clients unregister all regions at start."""
    raise InvalidRequest(
        f"failed to register CUDA shared memory region: {quote(region)}, GPUs not supported; register system "
        f"shared memory, which works also for models on a GPU"
    )


def add_routes(
    app: "falcon.App[Any, Any]", memory: ServerMemory, reader: DocumentReader, access: Access
) -> None:
    """Add the REST routes to an app."""
    cuda = JsonResource(post=lambda document, region: _refuse_cuda(region), read_document=reader)
    for prefix, known, register in (
        ("/v2/systemsharedmemory", memory.regions, RegisterResource(memory, reader, access)),
        ("/v2/cudasharedmemory", Regions(most=0, kind="cuda"), cuda),
    ):
        status = JsonResource(lambda region="", known=known: known.status(region))
        unregister = JsonResource(post=partial(_unregister, known), read_document=reader)
        for path, resource in (
            ("/status", status),
            ("/region/{region}/status", status),
            ("/region/{region}/register", register),
            ("/unregister", unregister),
            ("/region/{region}/unregister", unregister),
        ):
            app.add_route(prefix + path, resource, needs=Needs.CONTROL)


def calls(memory: ServerMemory | None, access: Access) -> dict[str, Behavior]:
    """Return the gRPC calls by name; they refuse if shared memory is off."""
    if memory is None:
        acts = ("Status", "Register", "Unregister")
        names = [f"{kind}SharedMemory{act}" for kind in ("System", "Cuda") for act in acts]
        return dict.fromkeys(names, _refuse)

    def register(request: Any, call: Call) -> Any:
        user = memory.memory_user(grpc_user(access, call))
        memory.regions.register(request.name, request.key, request.offset, request.byte_size, user)
        return message_class("inference.SystemSharedMemoryRegisterResponse")()

    return {
        **_calls("System", memory.regions, register),
        **_calls(
            "Cuda", Regions(most=0, kind="cuda"), lambda request, call: _refuse_cuda(request.name)
        ),
    }


def _calls(kind: str, regions: Regions, register: Behavior) -> dict[str, Behavior]:
    """Return the gRPC calls of one kind of shared memory by name."""

    def status(request: Any, call: Call) -> Any:
        found = {region["name"]: region for region in regions.status(request.name)}
        return to_message(f"inference.{kind}SharedMemoryStatusResponse", {"regions": found})

    def unregister(request: Any, call: Call) -> Any:
        regions.unregister(request.name)
        return message_class(f"inference.{kind}SharedMemoryUnregisterResponse")()

    acts = {"Status": status, "Register": register, "Unregister": unregister}
    return {f"{kind}SharedMemory{name}": act for name, act in acts.items()}


def _refuse(request: Any, call: Call) -> Any:
    raise NotImplementedByKsrv("shared memory is off; --allow-shared-memory switches it on")

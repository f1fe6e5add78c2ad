"""Triton's routes for shared memory of the system and of CUDA: register, unregister and status of regions."""

from typing import Any

import falcon

from ksrv.errors import InvalidRequest, quote
from ksrv.server.credentials import Access
from ksrv.server.http.answers import send_json
from ksrv.server.memory_regions import CudaMemory, SharedMemory, unsigned
from ksrv.server.rest.repository import ReadDocument
from ksrv.server.rest.route_guard import Needs, memory_user

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"


class StatusResource:
    """GET /v2/{system,cuda}sharedmemory[/region/{region}]/status."""

    def __init__(self, regions: SharedMemory | CudaMemory) -> None:
        self._regions = regions

    def on_get(self, req: falcon.Request, resp: falcon.Response, region: str = "") -> None:
        """Answer the registered regions."""
        send_json(
            resp,
            [
                {
                    "name": found.name,
                    "key": found.key,
                    "offset": found.offset,
                    "byte_size": found.byte_size,
                }
                for found in self._regions.status(region)
            ],
        )


class RegisterResource:
    """POST /v2/systemsharedmemory/region/{region}/register."""

    def __init__(self, regions: SharedMemory, read_document: ReadDocument, access: Access) -> None:
        self._regions = regions
        self._read_document = read_document
        self._access = access

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str) -> None:
        """Register a region."""
        user = memory_user(self._access, req.env)
        document = self._read_document(req)
        key: Any = document.get("key")
        if not isinstance(key, str):
            raise InvalidRequest(
                f"shared memory region {quote(region)}: 'key' must be a string that names the memory"
            )
        self._regions.register(
            region,
            key,
            unsigned(document.get("offset", 0), "offset"),
            unsigned(document.get("byte_size"), "byte_size"),
            user,
        )
        send_json(resp, {})


class CudaRegisterResource:
    """POST /v2/cudasharedmemory/region/{region}/register."""

    def __init__(self, regions: CudaMemory, read_document: ReadDocument) -> None:
        self._regions = regions
        self._read_document = read_document

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str) -> None:
        """Refuse a region."""
        self._read_document(req)
        self._regions.register(region)


class UnregisterResource:
    """POST /v2/{system,cuda}sharedmemory[/region/{region}]/unregister."""

    def __init__(self, regions: SharedMemory | CudaMemory, read_document: ReadDocument) -> None:
        self._regions = regions
        self._read_document = read_document

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str = "") -> None:
        """Forget one region or all."""
        self._read_document(req)
        self._regions.unregister(region)
        send_json(resp, {})


def add_routes(
    app: "falcon.App[Any, Any]", regions: SharedMemory, read_document: ReadDocument, access: Access
) -> None:
    """Add the routes to an app."""
    cuda = CudaMemory()
    for prefix, known, register in (
        (SYSTEM, regions, RegisterResource(regions, read_document, access)),
        (CUDA, cuda, CudaRegisterResource(cuda, read_document)),
    ):
        status, unregister = StatusResource(known), UnregisterResource(known, read_document)
        for path, resource in (
            ("/status", status),
            ("/region/{region}/status", status),
            ("/region/{region}/register", register),
            ("/unregister", unregister),
            ("/region/{region}/unregister", unregister),
        ):
            app.add_route(prefix + path, resource, needs=Needs.CONTROL)

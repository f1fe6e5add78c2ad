"""Triton's routes for shared memory of the system and of CUDA: register, unregister and status of regions."""

from dataclasses import asdict
from functools import partial
from typing import Any

import falcon

from ksrv.protocol.documents import RegisterRequest, read_document
from ksrv.server.credentials import Access
from ksrv.server.http.answers import send_json
from ksrv.server.memory_regions import CudaMemory, SharedMemory
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import Needs, memory_user


class RegisterResource:
    """POST /v2/systemsharedmemory/region/{region}/register."""

    def __init__(self, regions: SharedMemory, reader: DocumentReader, access: Access) -> None:
        self._regions = regions
        self._reader = reader
        self._access = access

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str) -> None:
        """Register a region."""
        user = memory_user(self._access, req.env)
        wanted = read_document(self._reader(req), RegisterRequest)
        self._regions.register(region, wanted.key, wanted.offset, wanted.byte_size, user)
        send_json(resp, {})


def _status(regions: SharedMemory | CudaMemory, region: str = "") -> list[dict[str, Any]]:
    return [asdict(found) for found in regions.status(region)]


def _unregister(
    regions: SharedMemory | CudaMemory, document: object, region: str = ""
) -> dict[str, Any]:
    regions.unregister(region)
    return {}


def _refuse_cuda(document: object, region: str) -> None:
    CudaMemory().register(region)


def add_routes(
    app: "falcon.App[Any, Any]", regions: SharedMemory, reader: DocumentReader, access: Access
) -> None:
    """Add the routes to an app."""
    cuda = CudaMemory()
    for prefix, known, register in (
        ("/v2/systemsharedmemory", regions, RegisterResource(regions, reader, access)),
        ("/v2/cudasharedmemory", cuda, JsonResource(None, _refuse_cuda, reader)),
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

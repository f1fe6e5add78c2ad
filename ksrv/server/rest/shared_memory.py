"""Triton's routes for system shared memory: register, unregister and status of regions."""

from typing import Any

import falcon

from ksrv.errors import InvalidRequest, quote
from ksrv.server.memory_regions import SharedMemory, unsigned
from ksrv.server.rest.repository import ReadDocument
from ksrv.server.rest.responses import send_json
from ksrv.server.rest.route_guard import Needs

PREFIX = "/v2/systemsharedmemory"


class StatusResource:
    """GET /v2/systemsharedmemory[/region/{region}]/status."""

    def __init__(self, regions: SharedMemory) -> None:
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

    def __init__(self, regions: SharedMemory, read_document: ReadDocument) -> None:
        self._regions = regions
        self._read_document = read_document

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str) -> None:
        """Register a region."""
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
        )
        send_json(resp, {})


class UnregisterResource:
    """POST /v2/systemsharedmemory[/region/{region}]/unregister."""

    def __init__(self, regions: SharedMemory, read_document: ReadDocument) -> None:
        self._regions = regions
        self._read_document = read_document

    def on_post(self, req: falcon.Request, resp: falcon.Response, region: str = "") -> None:
        """Forget one region or all."""
        self._read_document(req)
        self._regions.unregister(region)
        send_json(resp, {})


def add_routes(
    app: "falcon.App[Any, Any]", regions: SharedMemory, read_document: ReadDocument
) -> None:
    """Add the routes to an app.

    Args:
        app: The app.
        regions: The server's regions.
        read_document: Reads a call's JSON object.
    """
    status = StatusResource(regions)
    unregister = UnregisterResource(regions, read_document)
    for path, resource in (
        ("/status", status),
        ("/region/{region}/status", status),
        ("/region/{region}/register", RegisterResource(regions, read_document)),
        ("/unregister", unregister),
        ("/region/{region}/unregister", unregister),
    ):
        app.add_route(PREFIX + path, resource, needs=Needs.CONTROL)

"""One server for each way of hosting the REST side; every case runs against each of them."""

import http.client
import json
from dataclasses import dataclass, field

import pytest

from ksrv.testing import Server
from tests.conformance.conformance_models import write_repository


@dataclass
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers.get_content_type() == "application/json"
        return self.json["error"]

    @property
    def outputs(self) -> dict:
        """JSON outputs by name, and binary outputs as bytes."""
        length = self.headers.get("Inference-Header-Content-Length")
        header = json.loads(self.body[: int(length)] if length else self.body)
        offset = int(length) if length else len(self.body)
        found = {}
        for output in header["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                found[output["name"]] = output["data"]
            else:
                found[output["name"]] = self.body[offset : offset + size]
                offset += size
        assert offset == len(self.body)
        return found


@dataclass
class Rest:
    """A client on one kept-alive connection, so that every case also proves that the connection still works."""

    server: Server
    connection: http.client.HTTPConnection = field(init=False)

    def __post_init__(self):
        host, port = self.server.http.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)

    def call(self, method, path, body=None, headers=None) -> Answer:
        self.connection.request(method, path, body=body, headers=headers or {})
        response = self.connection.getresponse()
        assert response.status not in (500, 502), response.read()  # no case is the server's fault
        return Answer(response.status, response.headers, response.read())

    def get(self, path) -> Answer:
        return self.call("GET", path)

    def infer(self, model, document, *blocks, header=None, headers=None) -> Answer:
        """POST an infer request: a dict or text as JSON, then binary blocks."""
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        sent = dict(headers or {})
        if header is not None:
            sent["Inference-Header-Content-Length"] = str(header)
        elif blocks:
            sent["Inference-Header-Content-Length"] = str(len(text))
        return self.call("POST", f"/v2/models/{model}/infer", text + b"".join(blocks), sent)


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("conformance")
    write_repository(root)
    return root


@pytest.fixture(scope="session")
def server(repository):
    with Server(repository) as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def rest(server):
    client = Rest(server)
    yield client
    client.connection.close()
    assert Rest(server).get("/v2/health/live").status == 200

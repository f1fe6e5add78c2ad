"""DNS rebinding: a web page points its name at this machine, and calls a server that trusts its address."""

import http.client
import socket

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.grpc_calls import call, row_request, stub_infer
from tests.support.wire.http_reader import double_body

EVIL = "evil.example"
OWN = (
    "127.0.0.1",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "[::1]",
    "10.0.0.7",
    socket.gethostname(),
    "backend",  # of nginx, or of Docker
    "backend:8080",
)
SAID = f"Host '{EVIL}' is not this machine"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rebound")
    write_double(folder)
    return folder


@pytest.fixture(scope="module", params=["native", "grpcio"])
def server(request, models):
    with Server(models, grpc_server=request.param) as running:
        yield running


@pytest.mark.parametrize("path", ["/v2", "/metrics"])
def test_no_route_answers_under_a_foreign_name(server, path):
    """CVE-2025-62593, CVE-2025-14279, CVE-2024-28224."""
    for host in (EVIL, f"{EVIL}:8080", f"localhost.{EVIL}", f"127.0.0.1.{EVIL}"):
        answer = requests.get(server.url + path, headers={"Host": host}, timeout=30)
        assert answer.status_code == 403, host
    for host in OWN:
        answer = requests.get(server.url + path, headers={"Host": host}, timeout=30)
        assert answer.status_code == 200, host


@pytest.mark.parametrize("body", [double_body(), double_body([1.0] * 4) + b" " * 100_000])
def test_no_prediction_is_made_under_a_foreign_name(server, body):
    """Also not by a connection that has named this machine before; which lives on."""
    with requests.Session() as session:
        for host, status in (("localhost", 200), (EVIL, 403), ("localhost", 200), (EVIL, 403)):
            answer = session.post(
                f"{server.url}/v2/models/double/infer",
                data=body,
                headers={"Host": host},
                timeout=30,
            )
            assert answer.status_code == status
            assert (SAID in answer.text) == (status == 403)


def test_a_body_in_chunks_or_an_absolute_target_is_no_way_around(server):
    host, port = server.http.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    headers = {"Host": EVIL}
    connection.request(
        "POST", "/v2/models/double/infer", iter([double_body()]), headers, encode_chunked=True
    )
    answer = connection.getresponse()
    assert (answer.status, SAID in answer.read().decode()) == (403, True)
    connection.request("GET", f"http://{EVIL}/v2", headers={"Host": "localhost"})
    assert connection.getresponse().status == 403
    connection.close()


def test_no_call_of_grpc_is_answered_under_a_foreign_name(server):
    def code(channel, method, fields):
        try:
            call(channel, method, **fields)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    for host, expected in (
        (EVIL, "PERMISSION_DENIED"),
        ("localhost:1", "OK"),
        ("[::1]:9000", "OK"),
    ):
        options = [("grpc.default_authority", host)]
        with grpc.insecure_channel(server.grpc, options) as channel:
            for name, fields in (
                ("ServerReady", {}),
                ("ServerMetadata", {}),
                ("ModelMetadata", {"name": "double"}),
                ("RepositoryModelLoad", {"model_name": "double"}),
            ):
                assert code(channel, name, fields) == expected, (host, name)
            for _ in range(2):
                infer = stub_infer(channel)
                if expected == "OK":
                    assert infer(row_request("double"), timeout=30).raw_output_contents
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    infer(row_request("double"), timeout=30)
                assert refused.value.code().name == expected
                assert SAID in refused.value.details()


def test_any_host_is_accepted_with_credentials_or_on_a_public_server(models, tmp_path):
    (tmp_path / "tokens").write_text("secret\n")
    for settings in ({"token_file": str(tmp_path / "tokens")}, {"insecure": True}):
        with Server(models, **settings) as running:
            headers = {"Host": EVIL, "Authorization": "Bearer secret"}
            for path in ("/v2", "/v2/models/double", "/metrics"):
                answer = requests.get(running.url + path, headers=headers, timeout=30)
                assert answer.status_code == 200, (settings, path)
            options = [("grpc.default_authority", EVIL)]
            metadata = [("authorization", "Bearer secret")]
            with grpc.insecure_channel(running.grpc, options) as channel:
                stub_infer(channel)(row_request("double"), metadata=metadata, timeout=30)


def test_a_unix_socket_takes_every_host(models, tmp_path):
    path = tmp_path / "http.sock"
    with Server(models, http=f"unix:{path}", grpc=f"unix:{tmp_path}/grpc.sock") as running:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(
                f"GET /v2 HTTP/1.1\r\nHost: {EVIL}\r\nConnection: close\r\n\r\n".encode()
            )
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        options = [("grpc.default_authority", EVIL)]
        with grpc.insecure_channel(running.grpc, options) as channel:
            assert call(channel, "ServerReady").ready
            assert stub_infer(channel)(row_request("double"), timeout=30).raw_output_contents


def test_app_checks_the_host_under_gunicorns_workers(models):
    with Server(models, grpc="off", worker_class="gthread") as running:
        for host, status in ((EVIL, 403), ("localhost", 200)):
            for path in ("/v2", "/metrics", "/v2/health/live"):
                answer = requests.get(running.url + path, headers={"Host": host}, timeout=30)
                assert answer.status_code == status

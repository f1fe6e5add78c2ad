"""The PROXY protocol before HTTP and TLS: which address counts, and which connections are closed with a log line."""

import contextlib
import json
import socket
import ssl

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, open_connection, read_all, read_answer
from tests.support.wire.proxy_headers import SIGNATURE, binary, line

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
INDEX = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
UNLOAD = b"POST /v2/repository/models/double/unload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    return folder


@pytest.fixture(scope="module")
def server(models):
    """A server that trusts all proxies, and whose log shows its clients' addresses."""
    with Server(
        models, grpc="off", proxy_protocol="auto", access_log=True, wait_ready=False
    ) as running:
        wait_until(lambda: "models loaded" in running.log)
        yield running


@contextlib.contextmanager
def connected(server, header=b""):
    with open_connection(server.http, 60) as client:
        client.sendall(header)
        yield client


@pytest.mark.parametrize("make", [line, binary])
@pytest.mark.parametrize(("source", "target"), [("192.0.2.7", "192.0.2.1"), ("2001:db8::7", "::1")])
def test_the_client_that_a_proxy_names_is_the_peer(server, make, source, target):
    with connected(server, make(source, target, 4711)) as client:
        for message in (LIVE, INDEX, LIVE):  # one header is valid for all messages of a connection
            client.sendall(message)
            assert read_answer(client).status == 200
    wait_until(lambda: server.log.count(f" {source} - - ") >= 3)


def test_remote_client_of_a_proxy_has_no_local_rights(server):
    with connected(server, line()) as client:
        client.sendall(UNLOAD)
        assert read_answer(client).status == 403


def test_local_header_keeps_the_proxys_address(server):
    with connected(server, binary(command=0)) as client:
        for message in (INDEX, UNLOAD.replace(b"/unload", b"/load")):
            client.sendall(message)
            assert read_answer(client).status == 200


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN 127.0.0.1 127.0.0.1 1 2\r\n",
        SIGNATURE + b"\x21\x00\x00\x00",
        SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
    ],
    ids=["v1", "v1 with addresses", "v2 unspecified", "v2 unix"],
)
def test_unknown_client_of_a_local_proxy_is_not_local(server, header):
    with connected(server, header) as client:
        client.sendall(INDEX)
        assert read_answer(client).status == 200
        client.sendall(UNLOAD)
        answer = read_answer(client)
    assert (answer.status, "programs on this machine" in answer.error) == (403, True)
    wait_until(lambda: " :: - - " in server.log)


@pytest.mark.parametrize("header", [line(), binary(more=b"\x04\x00\x00")], ids=["v1", "v2"])
def test_header_may_arrive_in_pieces_and_with_the_message(server, header):
    data = header + LIVE
    for cut in range(1, len(data), 7):
        with connected(server) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(data[:cut])
            client.sendall(data[cut:])
            assert read_answer(client).status == 200


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LIVE, "the header is missing"),
        (b"\x16\x03\x01", "the header is missing"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 x 2\r\n" + LIVE, "a port that is not a number"),
        (SIGNATURE + b"\x21\x11\xff\xff" + bytes(200), "longer than 4096 bytes"),
    ],
    ids=["none", "TLS", "port", "long"],
)
def test_invalid_header_closes_the_connection_and_is_logged(server, data, why):
    seen = server.log.count(why)
    with connected(server, data) as client, contextlib.suppress(ConnectionError):
        assert read_all(client) == b""
    wait_until(lambda: server.log.count(why) > seen)
    assert "PROXY protocol: a connection from 127.0.0.1 is closed: " in server.log


def test_slow_header_is_closed_at_the_head_timeout(models):
    with Server(
        models, grpc="off", proxy_protocol="v2", head_timeout=0.3, wait_ready=False
    ) as slow:
        for begin in (b"", SIGNATURE[:5], binary()[:-1]):
            with connected(slow, begin) as client, contextlib.suppress(ConnectionError):
                assert read_all(client) == b""
        wait_until(lambda: slow.log.count("the header did not arrive within head_timeout") == 3)


def test_only_trusted_peers_may_send_a_header_and_others_need_none(models):
    with Server(
        models, grpc="off", proxy_protocol="auto", proxy_allow_ips=["192.0.2.0/24"]
    ) as direct:
        for message in (LIVE, INDEX):
            with connected(direct) as client:
                client.sendall(message[:3])  # could become PROXY
                client.sendall(message[3:])
                assert read_answer(client).status == 200
        for header in (line(), binary()):
            with connected(direct, header + LIVE) as client, contextlib.suppress(ConnectionError):
                assert read_all(client) == b""
        wait_until(lambda: "proxy_allow_ips does not list this address" in direct.log)
        page = direct.get("/metrics")[1]
        assert 'ksrv_refused_requests_total{protocol="http",reason="proxy_header"} 2' in str(page)


def test_listed_networks_must_send_a_header(models):
    networks = ["127.1.0.0/16", "127.2.0.128/25", "127.3.0.1", "fd00::/9"]
    with Server(models, grpc="off", proxy_protocol="v1", proxy_allow_ips=networks) as server:
        for source, listed in (
            ("127.1.255.1", True), ("127.2.0.129", True), ("127.3.0.1", True),
            ("127.0.0.1", False), ("127.2.0.127", False), ("127.3.0.2", False),
        ):  # fmt: skip
            host, port = server.http.rsplit(":", 1)
            with socket.create_connection((host, int(port)), 60, (source, 0)) as client:
                client.sendall(LIVE)
                with contextlib.suppress(ConnectionError):
                    assert (source, client.recv(1) == b"") == (source, listed)


@pytest.mark.parametrize("header", [line(), binary()], ids=["v1", "v2"])
def test_tls_follows_the_header(models, tmp_path, header):
    key, cert = self_signed(tmp_path)
    settings = {
        "tls_cert": str(cert),
        "tls_key": str(key),
        "proxy_protocol": "auto",
        "access_log": True,
    }
    context = ssl.create_default_context(cafile=str(cert))
    with Server(models, grpc="off", wait_ready=False, **settings) as server:
        wait_until(lambda: "models loaded" in server.log)
        with (
            connected(server, header) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(LIVE)
            assert read_answer(client).status == 200
        wait_until(lambda: "192.0.2.7 - - " in server.log)


@pytest.fixture(scope="module", params=["mount_prefix", "SCRIPT_NAME"])
def mounted(models, request):
    with contextlib.ExitStack() as stack:
        given = {}
        if request.param == "mount_prefix":
            given["mount_prefix"] = "/a/b"
        else:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("SCRIPT_NAME", "/a/b")
        running = stack.enter_context(Server(models, grpc="off", wait_ready=False, **given))
        wait_until(lambda: "models loaded" in running.log)
        yield running


def asked(server, method, path, body=b""):
    with open_connection(server.http, 60) as client:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        return read_answer(client)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/health/live"),
        ("GET", "/v2"),
        ("GET", "/v2/models/double"),
        ("GET", "/v2/models/double/stats"),
        ("GET", "/metrics"),
        ("GET", "/"),
    ],
)
def test_every_path_is_below_the_mount_prefix(mounted, method, path):
    assert asked(mounted, method, "/a/b" + path).status == 200
    for wrong in (path, "/a" + path, "/a/bc" + path, "/A/B" + path):
        answer = asked(mounted, method, wrong)
        assert answer.status == 404
        assert "the paths of this server begin with /a/b" in answer.error


def test_inference_works_below_the_mount_prefix(mounted):
    answer = asked(mounted, "POST", "/a/b/v2/models/double/infer", double_body())
    assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
    assert asked(mounted, "POST", "/v2/models/double/infer", double_body()).status == 404


def test_a_path_above_the_prefix_is_not_reached_by_dots(mounted):
    assert asked(mounted, "GET", "/a/b/../../v2").status == 400

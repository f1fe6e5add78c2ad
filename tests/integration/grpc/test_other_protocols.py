"""Clients of other protocols on the gRPC address: curl, a browser, a client with the wrong port."""

import json
import socket
import ssl
import subprocess

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.wire.http_reader import open_connection, read_all

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SPEAKS = "this address speaks gRPC over HTTP/2, and the request is not gRPC; "


def document_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nContent-Length: %d" % len(body) in head and b"\r\nConnection: close" in head
    return json.loads(body)


def test_curl_gets_the_address_of_rest(server):
    answer = subprocess.run(
        ["curl", "-sS", "-i", f"http://{server.grpc}/v2/models/double"],
        capture_output=True,
        check=True,
    )
    assert document_of(answer.stdout) == {"error": f"{SPEAKS}REST is at {server.url}"}


def test_a_client_that_would_send_a_large_body_is_answered(server):
    answer = requests.post(
        f"http://{server.grpc}/v2/models/double/infer", data=bytes(1 << 20), timeout=60
    )
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(SPEAKS)


@pytest.mark.parametrize(
    "sent",
    [b"\n", b"GET / HTTP/1.0\r\n\r\n", b"PRI * HTTP/1.1\r\n", PREFACE[:-1] + b"x", bytes(100)],
)
def test_bytes_without_the_preface_are_answered(server, sent):
    with open_connection(server.grpc, 60) as client:
        client.sendall(sent)
        assert document_of(read_all(client))["error"].startswith(SPEAKS)


def test_other_protocol_is_recognised_in_any_split(server):
    with open_connection(server.grpc, 60) as client:
        for byte in b"PRX * HTTP/2.0":
            try:
                client.sendall(bytes([byte]))
            except OSError:
                break  # the server has answered
        assert document_of(read_all(client))["error"].startswith(SPEAKS)


def test_preface_in_pieces_is_accepted(server):
    with open_connection(server.grpc, 60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREFACE:
            client.sendall(bytes([byte]))
        client.sendall(SETTINGS)
        first = client.recv(9)
        assert first[3] == 4  # SETTINGS (RFC 9113 6.5), and no text


def test_a_client_that_leaves_within_the_preface_is_forgotten(server):
    with open_connection(server.grpc, 60) as client:
        client.sendall(PREFACE[:5])
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""


def test_rest_request_over_tls_gets_the_address_of_rest(repository, tmp_path):
    key, cert = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    with Server(repository, tls_cert=str(cert), tls_key=str(key)) as server:
        for protocols in (["http/1.1"], []):
            if protocols:
                context.set_alpn_protocols(protocols)
            with context.wrap_socket(open_connection(server.grpc, 60)) as client:
                client.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
                told = document_of(read_all(client))
            assert told == {"error": f"{SPEAKS}REST is at {server.url}"}


@pytest.mark.parametrize(("method", "status"), [("GET", "405"), ("POST", "415")])
def test_answer_is_sent_over_cleartext_http2(server, method, status):
    url = f"http://{server.grpc}/v2"
    answer = subprocess.run(
        ["curl", "-sS", "-w", " %{http_code}", "--http2-prior-knowledge", "-X", method, url],
        capture_output=True,
        check=True,
    )
    text, code = answer.stdout.decode().rsplit(" ", 1)
    assert code == status
    assert json.loads(text) == {"error": f"{SPEAKS}REST is at {server.url}"}


@pytest.mark.parametrize(
    ("http", "says"),
    [
        ("0.0.0.0:0", "REST is on port {port} of this machine (http://)"),
        ("unix:{folder}/http.sock", "REST is at a unix socket of this machine"),
    ],
)
def test_wildcard_address_is_shown_as_a_callable_address(repository, tmp_path, http, says):
    address = http.format(folder=tmp_path)
    with Server(repository, http=address, insecure=True, wait_ready=False) as server:
        server.wait_loaded()
        answer = requests.get(f"http://{server.grpc}/v2", timeout=60)
        port = server.http.rpartition(":")[2]
    assert answer.json()["error"] == SPEAKS + says.format(port=port, folder=tmp_path)

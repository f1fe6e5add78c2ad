"""The HTTP address carries HTTP/1.1, REST over HTTP/2, and gRPC."""

import itertools
import json
import re
import signal
import socket
import ssl
import threading
import time

import grpc
import h2.errors
import numpy as np
import pytest
import requests

from ksrv.testing import Server, ServerFailed
from tests.support.certificates import self_signed
from tests.support.models import write_all
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer
from tests.support.wire.http2_client import Http2Client
from tests.support.wire.http_reader import read_message

ROW = np.arange(4, dtype=np.float32)
CALL = infer_request("double", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()])
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
INFER = "/v2/models/double/infer"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models):
    with Server(models, access_log=True) as running:
        yield running


def doubled(channel):
    answer = stub_infer(channel)(CALL, timeout=60)
    return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


def test_grpc_is_served_on_both_addresses(server):
    for address in (server.http, server.grpc):
        with grpc.insecure_channel(address) as channel:
            assert doubled(channel) == [0, 2, 4, 6]


@pytest.mark.parametrize("offered", [["h2"], ["http/1.1"], ["h2", "http/1.1"], ["x"], []])
def test_tls_agrees_on_what_the_client_offers(models, tmp_path, offered):
    key, cert = self_signed(tmp_path)
    with Server(models, tls_cert=str(cert), tls_key=str(key), grpc="http") as server:
        context = ssl.create_default_context(cafile=cert)
        if offered:
            context.set_alpn_protocols(offered)
        host, _, port = server.http.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=60)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            if "h2" in offered:
                assert client.selected_alpn_protocol() == "h2"
                assert Http2Client(client).request("GET", "/v2/health/live").status == 200
            else:
                assert client.selected_alpn_protocol() in (None, "http/1.1")
                client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
        assert "gRPC  on the HTTP address\n" in server.log and server.grpc == server.http
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(server.grpc, trusted) as channel:
            assert doubled(channel) == [0, 2, 4, 6]


def test_one_connection_carries_grpc_and_rest_side_by_side(server):
    message = CALL.SerializeToString()
    message = b"\x00" + len(message).to_bytes(4, "big") + message
    grpc_fields = [("content-type", "application/grpc"), ("te", "trailers")]
    path = "/inference.GRPCInferenceService/ModelInfer"
    with Http2Client(server.http) as client:
        streams = []
        for turn in range(20):
            fields, body = ([], BODY) if turn % 2 else (grpc_fields, message)
            stream = client.begin("POST", INFER if turn % 2 else path, fields)
            client.send(stream, body[:7])
            streams.append((stream, body[7:], turn % 2))
        for stream, rest, _ in reversed(streams):
            client.send(stream, rest, end=True)
        for stream, _, is_rest in streams:
            answer = client.wait(stream)
            assert answer.status == 200
            if is_rest:
                assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
            else:
                assert np.frombuffer(answer.body[-16:], np.float32).tolist() == [0, 2, 4, 6]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("step", [1, 5, 17, 23])
def test_the_preface_may_come_in_pieces(server, step):
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(PREFACE), step):
            client.sendall(PREFACE[at : at + step])
            time.sleep(0.002)
        client.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert client.recv(9)[3] == 4  # the server's SETTINGS


@pytest.mark.parametrize("length", [4, 16, 18, 20, 22])
def test_what_only_begins_like_the_preface_is_no_request(server, length):
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(PREFACE[:length])
        time.sleep(0.05)
        client.sendall(b"X" + b" /\r\n\r\n" * 3)
        head, _, _ = read_message(client)
        assert re.match(rb"HTTP/1\.1 (400|505) ", head), head


def test_the_preface_behind_a_request_is_no_request(server):
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" + PREFACE)
        head, body, rest = read_message(client)
        assert head.startswith(b"HTTP/1.1 200 OK")
        while piece := client.recv(1 << 16):
            rest += piece
        assert re.match(rb"HTTP/1\.1 (400|505) ", rest), body


def test_the_access_log_and_the_metrics_know_of_requests_over_http2(server):
    def counted():
        text = requests.get(f"{server.url}/metrics", timeout=60).text
        labels = 'protocol="http",status="404"'
        found = re.search(rf"^ksrv_error_answers_total\{{{labels}\}} (\S+)", text, re.M)
        return float(found[1]) if found else 0.0

    before = counted()
    with Http2Client(server.http) as client:
        assert client.request("GET", "/told?by=http2").status == 404
    wait_until(lambda: '"GET /told?by=http2 HTTP/2.0" 404' in server.log)
    assert re.search(r'127\.0\.0\.1 - - .*"GET /told\?by=http2', server.log)
    wait_until(lambda: counted() == before + 1)


def test_a_request_that_is_refused_at_its_head_is_logged_as_one_of_http(server):
    fields = [("x-request-id", "much-told"), *((f"x-{at}", "y" * 4000) for at in range(6))]
    with Http2Client(server.http) as client:
        stream = client.begin("GET", "/much-told", fields, end=True)
        assert client.wait(stream).status == 431
    wait_until(lambda: '"GET /much-told HTTP/2.0" 431' in server.log, tell=lambda: server.log)
    (line,) = (line for line in server.log.splitlines() if "/much-told" in line)
    assert line.count("much-told") == 2


def test_a_request_that_is_refused_at_its_head_is_told_its_status_over_tls(models, tmp_path):
    key, cert = self_signed(tmp_path)
    fields = [(f"x-{at}", "y" * 4000) for at in range(6)]
    with Server(models, tls_cert=str(cert), tls_key=str(key)) as server:
        context = ssl.create_default_context(cafile=cert)
        with Http2Client(server.http, context) as client:
            for _ in range(10):
                stream = client.begin("GET", "/refused", fields, end=True)
                assert client.wait(stream).status == 431


@pytest.mark.parametrize("offered", [["http/1.1"], []])
def test_http2_over_tls_needs_that_tls_agreed_on_it(models, tmp_path, offered):
    key, cert = self_signed(tmp_path)
    with Server(models, tls_cert=str(cert), tls_key=str(key)) as server:
        context = ssl.create_default_context(cafile=cert)
        if offered:
            context.set_alpn_protocols(offered)
        host, _, port = server.http.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=60)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(PREFACE)
            assert re.match(rb"HTTP/1\.1 (400|505) ", read_message(client)[0])


def test_a_server_without_http2_speaks_http_1_alone(models, tmp_path):
    key, cert = self_signed(tmp_path)
    for settings in ({"http2": False}, {"grpc_server": "grpcio"}):
        tls = {"tls_cert": str(cert), "tls_key": str(key)}
        with Server(models, **tls, **settings) as server:
            context = ssl.create_default_context(cafile=cert)
            context.set_alpn_protocols(["h2", "http/1.1"])
            host, _, port = server.http.rpartition(":")
            plain = socket.create_connection((host, int(port)), timeout=60)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
                assert client.selected_alpn_protocol() in (None, "http/1.1")
                client.sendall(PREFACE)
                assert re.match(rb"HTTP/1\.1 (400|505) ", read_message(client)[0])
            trusted = grpc.ssl_channel_credentials(cert.read_bytes())
            with grpc.secure_channel(server.grpc, trusted) as channel:
                assert doubled(channel) == [0, 2, 4, 6]


def test_a_server_without_grpc_has_rest_over_http2(models):
    with Server(models, grpc="off") as server:
        with Http2Client(server.http) as client:
            assert client.request("POST", INFER, BODY).status == 200
        with grpc.insecure_channel(server.http) as channel, pytest.raises(grpc.RpcError) as caught:
            doubled(channel)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_grpc_on_the_http_address_alone_needs_http2(models):
    for settings in ({"http2": False}, {"http": "off"}, {"worker_class": "gthread"}):
        with pytest.raises(
            ServerFailed,
            match=r"the HTTP address does not carry gRPC, because .* address of its own with --grpc",
        ):
            Server(models, grpc="http", **settings).start()


@pytest.mark.parametrize("several", [1, 2])
def test_a_stop_answers_what_was_sent_and_says_goodbye(models, several):
    server = Server(models, grpc="http", workers=several)
    with server, Http2Client(server.http) as client, Http2Client(server.http) as idle:
        slow = BODY.replace(b'"data"', b'"data"')
        stream = client.begin("POST", "/v2/models/slow/infer", end=False)
        client.send(stream, slow, end=True)
        idle.request("GET", "/v2/health/live")
        server.process.send_signal(signal.SIGTERM)
        answer = client.wait(stream)
        assert answer.status == 200 and answer.over
        client.until_over()
        idle.until_over()
        for closed in (client, idle):
            assert closed.goodbye.error_code == h2.errors.ErrorCodes.NO_ERROR


@pytest.mark.parametrize("address", ["http", "grpc"])
def test_a_stop_does_not_wait_for_the_first_look_at_a_young_connection(models, address):
    patient = {"head_timeout": 300, "stop_timeout": 300}
    with (
        Server(models, **patient) as server,
        Http2Client(getattr(server, address)) as silent,
        Http2Client(getattr(server, address)) as idle,
    ):
        path = "/inference.GRPCInferenceService/ServerLive"
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        stream = idle.begin("POST", path, fields)
        idle.send(stream, bytes(5), end=True)
        assert idle.wait(stream).status == 200
        server.process.send_signal(signal.SIGTERM)
        for client in (idle, silent):
            client.until_over()
            assert client.goodbye.error_code == h2.errors.ErrorCodes.NO_ERROR
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("sent", [0, 7])
def test_a_stop_does_not_wait_for_requests_that_are_silent(models, sent):
    patient = {"head_timeout": 300, "stop_timeout": 300, "transfer_grace": 300}
    path = "/inference.GRPCInferenceService/ModelInfer"
    with Server(models, **patient) as server, Http2Client(server.http) as client:
        told = client.begin("POST", INFER, [("content-length", str(len(BODY)))])
        untold = client.begin("POST", INFER)
        call = client.begin("POST", path, [("content-type", "application/grpc")])
        for stream, whole in ((told, BODY), (untold, BODY), (call, bytes([0, 0, 0, 0, 90, 1, 1]))):
            client.send(stream, whole[:sent])
        assert client.request("GET", "/v2/health/live").status == 200
        server.process.send_signal(signal.SIGTERM)
        for stream in (told, untold):
            assert client.wait(stream).error == h2.errors.ErrorCodes.REFUSED_STREAM
        assert client.wait(call).fields["grpc-status"] == "14"
        client.until_over()
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("encrypted", [False, True])
def test_reloads_under_load_lose_nothing(models, tmp_path, encrypted):
    """Clients open a new connection when they are told goodbye, as every client of HTTP/2 does."""
    settings, trusted = {}, None
    if encrypted:
        key, cert = self_signed(tmp_path)
        settings = {"tls_cert": str(cert), "tls_key": str(key)}
        trusted = cert
    failed, done, rounds = [], threading.Event(), itertools.count()

    def work(address):
        try:
            while not done.is_set():
                context = ssl.create_default_context(cafile=trusted) if trusted else None
                with Http2Client(address, context) as client:
                    while not done.is_set() and client.goodbye is None and not client.over:
                        answer = client.request("POST", INFER, BODY)
                        refused = answer.error == h2.errors.ErrorCodes.REFUSED_STREAM
                        unseen = (
                            client.goodbye is not None
                            and max(client.answers) > client.goodbye.last_stream_id
                        )
                        if answer.status != 200 and not refused and not unseen:
                            failed.append((answer.status, answer.error, client.over))
                            return
                        next(rounds)
        except Exception as error:
            failed.append(error)

    def call(address):
        try:
            with (
                grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted.read_bytes()))
                if trusted
                else grpc.insecure_channel(address)
            ) as channel:
                while not done.is_set():
                    assert doubled(channel) == [0, 2, 4, 6]
                    next(rounds)
        except Exception as error:
            failed.append(error)

    with Server(models, grpc="http", **settings) as server:
        threads = [
            threading.Thread(target=target, args=(server.http,))
            for target in (work, work, work, call, call)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                before = server.log.count("models loaded")
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: server.log.count("models loaded") > before)  # noqa: B023
                time.sleep(0.5)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failed
    assert next(rounds) > 20

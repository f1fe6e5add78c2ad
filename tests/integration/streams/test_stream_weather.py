"""Streams in all weather: TLS, a token, chunked requests, clients that leave, handlers that panic."""

import json
import socket
import ssl

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.streams import StreamedResponse, pieces, text_request, write_later, write_words
from tests.support.wait_until import wait_until

TOKEN = {"Authorization": "Bearer good"}
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("certificate"), "server")


@pytest.fixture(scope="module")
def server(tmp_path_factory, certificate):
    root = tmp_path_factory.mktemp("models")
    write_words(root)
    write_words(root, "words-process", "executor: process\n")
    write_later(root, yaml="executor: inline\n")  # a process does not learn of a client that left
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("good\n")
    key, cert = certificate
    with Server(root, tls_cert=str(cert), tls_key=str(key), token_file=str(tokens)) as made:
        yield made


@pytest.fixture
def context(certificate):
    made = ssl.create_default_context(cafile=str(certificate[1]))
    made.check_hostname = False
    return made


@pytest.fixture(params=["words", "words-process"])
def model(request):
    return request.param


def test_events_over_tls_with_a_token(server, context, model):
    path = f"/v2/models/{model}/infer"
    with StreamedResponse(server, path, text_request("a b"), context=context) as found:
        assert found.status == 401
    asked = text_request("one two panic")
    with StreamedResponse(server, path, asked, context=context, headers=TOKEN) as found:
        *events, (name, error) = found.events()
    assert pieces(document for _, document in events) == ["one ", "two "]
    assert (name, "secret" in error["error"]) == ("error", False)
    asked = {"text_input": "a b"}
    path = f"/v2/models/{model}/generate_stream"
    with StreamedResponse(server, path, asked, context=context, headers=TOKEN) as found:
        assert [document["text_output"] for _, document in found.events()] == ["a ", "b "]


def test_a_request_in_chunks_is_answered_with_a_stream(server, certificate, model):
    body = json.dumps(text_request("a b c")).encode()
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer",
        data=(body[at : at + 7] for at in range(0, len(body), 7)),
        headers=TOKEN | EVENTS,
        verify=str(certificate[1]),
        timeout=60,
    )
    assert answer.text.count("data: ") == 3


@pytest.mark.parametrize("pause", [0.01, 0.6])
def test_the_generator_is_closed_when_a_tls_client_leaves(server, context, model, tmp_path, pause):
    closed = tmp_path / "closed"
    asked = text_request("x " * 1000, closed=str(closed), pause=pause)
    path = f"/v2/models/{model}/infer"
    with StreamedResponse(server, path, asked, context=context, headers=TOKEN) as found:
        assert next(found.events())
    wait_until(closed.exists)


def test_a_silent_handler_is_cancelled_when_its_client_leaves(server, context, tmp_path):
    """The task of a coroutine ends though nothing is sent that could fail."""
    path = "/v2/models/later/infer"
    raw = text_request("xy", closed=str(tmp_path / "other"), pause=20)
    host, _, port = server.http.rpartition(":")
    body = json.dumps(raw).encode()
    with context.wrap_socket(socket.create_connection((host, int(port)))) as sock:
        sock.sendall(
            b"POST /v2/models/later/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n"
            b"Accept: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        # The request is with its handler once a later request is answered.
        with StreamedResponse(
            server, path, text_request("a"), context=context, headers=TOKEN
        ) as found:
            assert len(list(found.events())) == 1
    wait_until((tmp_path / "other").exists, 15)

"""Messages with wrong, unusual or late framing get one answer, and are never framed in two ways."""

import json
import socket

import pytest

from tests.support.error_texts import check_text
from tests.support.wire.http_reader import (
    double_body,
    infer_head,
    infer_message,
    parse_answers,
    read_all,
    read_answer,
)

BODY = double_body()
GOOD = infer_message()
PATH = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: ksrv\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def chunked(body):
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


HEALTH = b"GET /v2/health/live HTTP/1.1\r\n%s\r\n"
REQUESTS = {
    "health": HEALTH,
    "infer": b"POST /v2/models/double/infer HTTP/1.1\r\n%s" + LENGTH + b"\r\n" + BODY,
    "app": b"GET /v2/models/double/stats HTTP/1.1\r\n%s\r\n",
}
"""Requests that the native server answers itself, and that it passes to the app."""


@pytest.mark.parametrize(
    "host",
    [b"x", b"x.y:8000", b"127.0.0.1:", b"[::1]:80", b"[fe80::1%25eth0]", b"", b"a_b", b"%41.b", b"\ta \t"],
)  # fmt: skip
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_request_with_a_possible_host_is_framed(connect, request_, host):
    """A name with a dot that is not this machine's is refused, but the connection continues."""
    connection = connect()
    status = 403 if host in (b"x.y:8000", b"%41.b") else 200
    for _ in range(2):
        connection.sendall(request_ % (b"Host: " + host + b"\r\n"))
        assert read_answer(connection).status == status


UNENDED = {
    "size of 65 bits": (b"FFFFFFFFFFFFFFFFF\r\n", 400),
    "size of 65 bits without its line end": (b"FFFFFFFFFFFFFFFFF", 400),
    "size above the limit": (b"FFFFFFFFFFFFFFF\r\n", 413),
    "sizes that are together above the limit": (b"1\r\na\r\n40000000\r\n", 413),
    "line feeds alone": (chunked(BODY).replace(b"\r\n", b"\n"), 400),
    "extension of 70000 bytes": (b"1;" + b"a" * 70000, 400),
}


@pytest.mark.parametrize(("chunks", "status"), UNENDED.values(), ids=UNENDED.keys())
@pytest.mark.parametrize("fields", [b"", b"Expect: 100-continue\r\n"])
def test_a_malformed_chunk_is_refused_while_the_client_waits(connect, chunks, status, fields):
    connection = connect()
    connection.sendall(PATH + b"Transfer-Encoding: chunked\r\n" + fields + b"\r\n")
    if fields:
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(chunks)
    answer = read_answer(connection)
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    check_text(answer.error)
    assert read_all(connection) == b""


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"GET /v2 ZZZZ%s\r\n\r\n" % (b"Z" * 1000), 400),
        (b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"Z" * 9000), 414),
        (PATH + b"Z(" + b"Z" * 2000 + b": b\r\n\r\n", 400),
        (PATH + b"Expect: " + b"Z" * 500 + b"\r\n" + LENGTH + b"\r\n", 417),
        (PATH + b"Transfer-Encoding: " + b"Z" * 500 + b"\r\n\r\n", 400),
        (PATH + b"A: %s\r\n\r\n" % (b"Z" * 70_000), 431),
    ],
    ids=["version", "target", "field", "expectation", "coding", "head"],
)
def test_error_quotes_only_a_little_of_the_clients_text(connect, message, status):
    connection = connect()
    connection.sendall(message)
    (answer,) = parse_answers(read_all(connection))
    assert answer.status == status
    check_text(json.loads(answer.body)["error"], marker="Z")


def test_unknown_model_keeps_the_connection_with_an_unread_body(connect):
    connection = connect()
    connection.sendall(infer_message("nope", b"x" * 50_000) + GOOD)
    assert read_answer(connection).status == 404
    assert read_answer(connection).status == 200


def test_pipelined_requests_are_answered_in_order(connect):
    connection = connect()
    messages = [
        infer_message("double", double_body((index, 0, 0, 0)))
        + b"GET /v2/models/double HTTP/1.1\r\nHost: a\r\n\r\n"
        for index in range(5)
    ]
    connection.sendall(b"".join(messages) + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n"
                       b"Connection: close\r\n\r\n")  # fmt: skip
    answers = parse_answers(read_all(connection))
    assert [answer.status for answer in answers] == [200] * 11
    doubled = [json.loads(answer.body)["outputs"][0]["data"] for answer in answers[0:10:2]]
    flat = [values[0][0] if isinstance(values[0], list) else values[0] for values in doubled]
    assert flat == [0, 2, 4, 6, 8]


def test_a_message_may_come_byte_by_byte(connect):
    connection = connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for index in range(len(GOOD)):
        connection.sendall(GOOD[index : index + 1])
    assert read_answer(connection).status == 200


def test_a_body_that_ends_early_names_both_numbers(connect):
    connection = connect()
    connection.sendall(infer_head("double", 100) + b"x" * 40)
    connection.shutdown(socket.SHUT_WR)
    (answer,) = parse_answers(read_all(connection))
    assert answer.status == 400
    assert "40 of the 100 bytes" in answer.error


def test_answers_name_no_server_version(connect):
    connection = connect()
    connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert not any(character.isdigit() for character in read_answer(connection).headers["server"])

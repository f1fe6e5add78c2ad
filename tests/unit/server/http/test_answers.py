import falcon
import numpy as np
import pytest

from ksrv.errors import InferenceError, InvalidToken, NotReady, Unauthenticated, UnsupportedEncoding
from ksrv.request import InferResponse
from ksrv.server.http.answers import (
    send_error,
    send_parts,
    server_timing,
    set_handler_headers,
    status_line,
)
from ksrv.server.http.compression import chosen_encoding


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0, deflate;q=0", None),
        ("*", "gzip"),
        ("*;q=0.5, gzip;q=0", "deflate"),
        ("br", None),
    ],
)
def test_the_encoding_follows_the_weights(accept, encoding):
    assert chosen_encoding(accept) == encoding


def test_other_servers_get_the_parts_as_one_piece():
    resp = falcon.Response()
    send_parts(resp, [b"head ", memoryview(np.arange(9, dtype=np.uint8))], 14, {})
    assert resp.data == b"head " + bytes(range(9))


def test_errors_carry_their_headers():
    for error, name, value in [
        (NotReady("soon"), "Retry-After", "1"),
        (UnsupportedEncoding("br"), "Accept-Encoding", "gzip, deflate"),
        (Unauthenticated("who?"), "WWW-Authenticate", "Bearer"),
        (InvalidToken("who?"), "WWW-Authenticate", 'Bearer error="invalid_token"'),
        (InferenceError("no", 418, {"X-Reason": "teapot"}), "X-Reason", "teapot"),
    ]:
        resp = falcon.Response()
        send_error(resp, error)
        assert resp.get_header(name) == value
        assert resp.status.startswith(str(int(error.http_status)))


def test_a_handler_cannot_break_the_message_with_a_header():
    resp = falcon.Response()
    set_handler_headers(
        resp,
        {
            "X-Good": "yes",
            "Content-Length": "5",
            "transfer-encoding": "chunked",
            "X-Bad\r\nX-Worse": "1",
            "X-Split": "a\r\nSet-Cookie: b",
        },
    )
    assert resp.headers == {"x-good": "yes"}


def test_cookie_of_a_handler_is_sent():
    resp = falcon.Response()
    set_handler_headers(resp, {"Set-Cookie": "a=1; HttpOnly", "X-Good": "yes"})
    assert ("set-cookie", "a=1; HttpOnly") in resp._wsgi_headers()
    assert resp.headers["x-good"] == "yes"


def test_stages_are_milliseconds():
    response = InferResponse("m", "", "", [], timings={"queue": 1_500_000, "inference": 20_000})
    assert server_timing(response) == "queue;dur=1.500, inference;dur=0.020"


def test_unknown_statuses_have_a_phrase_too():
    assert status_line(404) == "404 Not Found"
    assert status_line(599) == "599 Error"

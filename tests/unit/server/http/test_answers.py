import pytest

from ksrv.server.http.answers import (
    usable_headers,
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


def test_a_handler_cannot_break_the_message_with_a_header():
    given = {
        "X-Good": "yes",
        "Content-Length": "5",
        "transfer-encoding": "chunked",
        "X-Bad\r\nX-Worse": "1",
        "X-Split": "a\r\nSet-Cookie: b",
    }
    assert usable_headers(given) == [("X-Good", "yes")]

"""Whatever the native decoder of chunked bodies finds whole, gunicorn and llhttp read alike."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.http.chunked_body import read_chunks
from tests.support.examples import examples
from tests.support.wire.gunicorn_parser import gunicorn_parser

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"


def gunicorns(data):
    """What gunicorn reads: the contents, and the path of the message behind them."""
    parser = gunicorn_parser(HEAD + data + NEXT)
    contents = next(parser).body.read()
    return contents, next(parser).path


class Body:
    """What httptools reads, up to the end of the first message."""

    def __init__(self):
        self.contents = b""
        self.ended = False

    def on_body(self, piece):
        self.contents += piece

    def on_message_complete(self):
        self.ended = True


def llhttps(data):
    body = Body()
    parser = httptools.HttpRequestParser(body)
    parser.feed_data(HEAD + data)
    assert body.ended
    return body.contents


def assert_agreement(data, pieces=()):
    found, end, contents = read_chunks(data, pieces)
    if found != "whole":
        return False
    assert gunicorns(data[:end]) == (contents, "/next")
    if b";" not in data:  # llhttp knows no blanks around extensions
        assert llhttps(data[:end]) == contents
    return True


@st.composite
def chunked(draw):
    contents = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    form = draw(st.sampled_from(["%x", "%X", "%04x"]))
    body = b"".join((form % len(one)).encode() + b"\r\n" + one + b"\r\n" for one in contents)
    end = draw(st.sampled_from([b"0", b"000"])) + b"\r\n"
    trailers = draw(st.sampled_from([b"", b"", b"X: y\r\n", b"X-A:\r\nb: c d\r\n"]))
    return b"".join(contents), body + end + trailers + b"\r\n"


@examples(300)
@given(chunked(), st.lists(st.integers(1, 30), max_size=8), st.binary(max_size=20))
def test_plain_chunks_are_read_however_they_are_split(made, pieces, behind):
    contents, body = made
    assert read_chunks(body + behind, pieces) == ("whole", len(body), contents)
    assert assert_agreement(body, pieces)


@examples(200)
@given(chunked())
def test_every_prefix_is_incomplete(made):
    _, body = made
    for end in range(len(body)):
        assert read_chunks(body[:end])[0] == "incomplete"


@examples(1500)
@given(chunked(), st.data())
def test_what_mutations_leave_whole_is_read_alike(made, data):
    body = bytearray(made[1])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.one_of(
                st.sampled_from([b"\r", b"\n", b"0", b"f", b"g", b";", b" ", b"x=1", b"+", b""])
            )
        )
    assert_agreement(bytes(body))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"+5\r\nhello\r\n0\r\n\r\n", "size"),
        (b"0x5\r\nhello\r\n0\r\n\r\n", "size"),
        (b"5\nhello\n0\n\n", "size"),
        (b"5 \r\nhello\r\n0\r\n\r\n", "size"),
        (b"\r\n", "size"),
        (b"g\r\n", "size"),
        (b"5\rhello", "size"),
        (b"-1\r\n", "size"),
        (b"5;x=\r\n", "size"),
        (b"5;\r\n", "size"),
        (b'5;x="a\r\n', "size"),
        (b"5;x=1 \r\n", "size"),
        (b"5" + b";a" * 5000, "size"),
        (b"1" + b"0" * 16 + b"\r\n", "size bits"),
        (b"5\r\nhello0\r\n\r\n", "end"),
        (b"5\r\nhelloo\r\n0\r\n\r\n", "end"),
        (b"5\r\nhello\n", "end"),
        (b"ffffffff\r\n", "length"),
        (b"ffffffffffffffff\r\n", "length"),
        (b"0\r\nX\r\n", "trailer"),
        (b"0\r\n X: y\r\n", "trailer"),
        (b"0\r\nX: y\n", "trailer"),
        (b"0\r\n\n", "trailer"),
        (b"0\r\n" + b"X: yyyyyyyy\r\n" * 10_000, "trailer"),
    ],
)  # fmt: skip
def test_faults_are_told_with_the_first_byte_that_cannot_be_right(body, fault):
    found, read, _ = read_chunks(body)
    assert found == fault
    assert read_chunks(body, [1] * len(body)) == read_chunks(body)
    assert read_chunks(body[: read - 1])[0] == "incomplete"


def test_extensions_and_trailers_are_read_over():
    body = b'3;a;b=c ; d = "e\\"f"\r\nabc\r\n0;x\r\nT: u\r\n\r\n'
    assert read_chunks(body + b"next") == ("whole", len(body), b"abc")
    assert assert_agreement(body)


def test_limits():
    body = b"2\r\nab\r\n" * 3 + b"0\r\n\r\n"
    assert read_chunks(body, most_chunks=3)[0] == "whole"
    assert read_chunks(body, most_chunks=2)[0] == "count"
    assert read_chunks(body, most_bytes=6)[0] == "whole"
    assert read_chunks(body, most_bytes=5)[0] == "length"

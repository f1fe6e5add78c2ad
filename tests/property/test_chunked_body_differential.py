"""Whatever the native look at a chunked body finds whole, gunicorn and llhttp read alike."""

import httptools
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.http.chunked_body import read_chunks
from tests.support.examples import examples

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"


def gunicorns(data):
    """What gunicorn reads: the contents, and the path of the message behind them."""
    cfg = Config()
    cfg.set("http_parser", "python")
    parser = RequestParser(cfg, iter([HEAD + data + NEXT]), ("127.0.0.1", 1))
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
    assert llhttps(data[:end]) == contents
    return True


@st.composite
def chunked(draw):
    contents = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    form = draw(st.sampled_from(["%x", "%X", "%04x"]))
    body = b"".join((form % len(one)).encode() + b"\r\n" + one + b"\r\n" for one in contents)
    return b"".join(contents), body + draw(st.sampled_from([b"0", b"000"])) + b"\r\n\r\n"


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


def test_other_forms_are_gunicorns():
    for body in (
        b"5;x=1\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"5\r\nhello0\r\n\r\n", b"\r\n", b"g\r\n",
        b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", b"000000005\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloo\r\n0\r\n\r\n",
        b"ffffffff\r\n", b"5\rhello", b"-1\r\n",
    ):  # fmt: skip
        assert read_chunks(body)[0] == "gunicorn", body


def test_limits():
    body = b"2\r\nab\r\n" * 3 + b"0\r\n\r\n"
    assert read_chunks(body, most_chunks=3)[0] == "whole"
    assert read_chunks(body, most_chunks=2)[0] == "gunicorn"
    assert read_chunks(body, most_bytes=6)[0] == "whole"
    assert read_chunks(body, most_bytes=5)[0] == "gunicorn"

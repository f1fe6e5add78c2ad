"""Bodies that the native decoder of chunks finds whole are read alike by gunicorn and llhttp."""

import string

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.native.wire_parsers import read_chunks
from tests.support.wire.gunicorn_parser import gunicorn_parser

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"


def gunicorns(data):
    """Return the contents that gunicorn reads, and the path of the next message."""
    parser = gunicorn_parser(HEAD + data + NEXT)
    contents = next(parser).body.read()
    return contents, next(parser).path


class Body:
    """The body that httptools reads, up to the end of the first message."""

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
def test_whole_mutated_bodies_are_read_alike(made, data):
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
        (b"5;x=1=2\r\n", "size"),
        (b'5;x="1"=2\r\n', "size"),
        (b'5;x="1"2\r\n', "size"),
        (b"5;x =1 =2\r\n", "size"),
        (b"1;x\r\na\r\n2=3\r\n", "size"),
        (b"5" + b";a" * 5000, "size"),
        (b"1" + b"0" * 16 + b"\r\n", "size bits"),
        (b"5\r\nhello0\r\n\r\n", "end"),
        (b"5\r\nhelloo\r\n0\r\n\r\n", "end"),
        (b"5\r\nhello\n", "end"),
        (b"5\r\nhello\r0", "end"),
        (b"ffffffff\r\n", "length"),
        (b"ffffffffffffffff\r\n", "length"),
        (b"0\r\nX\r\n", "trailer"),
        (b"0\r\n X: y\r\n", "trailer"),
        (b"0\r\nX: y\n", "trailer"),
        (b"0\r\n\n", "trailer"),
        (b"0\r\n" + b"X: yyyyyyyy\r\n" * 10_000, "trailer"),
    ],
)  # fmt: skip
def test_faults_are_reported_at_the_first_wrong_byte(body, fault):
    found, read, _ = read_chunks(body)
    assert found == fault
    assert read_chunks(body, [1] * len(body)) == read_chunks(body)
    assert read_chunks(body[: read - 1])[0] == "incomplete"


EVERY_BYTE = [bytes([byte]) for byte in range(256)]
TOKEN = set(string.ascii_letters.encode() + string.digits.encode() + b"!#$%&'*+-.^_`|~")
"""The bytes of a `token` (RFC 9110 5.6.2)."""
TEXT = {*b"\t", *range(0x20, 0x7F), *range(0x80, 0x100)}
"""The bytes of a field's value (RFC 9110 5.5), and of a quoted text."""


@pytest.mark.parametrize(
    ("around", "allowed", "fault"),
    [
        (b"1;%b\r\na\r\n0\r\n\r\n", TOKEN, "size"),
        (b"1;x%b\r\na\r\n0\r\n\r\n", TOKEN, "size"),
        (b"1;x=%b\r\na\r\n0\r\n\r\n", TOKEN, "size"),
        (b"1;x=y%b\r\na\r\n0\r\n\r\n", TOKEN, "size"),
        (b'1;x="%b"\r\na\r\n0\r\n\r\n', TEXT - {*b'"\\'}, "size"),
        (b'1;x="\\%b"\r\na\r\n0\r\n\r\n', TEXT, "size"),
        (b"0\r\n%b: y\r\n\r\n", TOKEN, "trailer"),
        (b"0\r\nX%b: y\r\n\r\n", TOKEN | {*b":"}, "trailer"),
        (b"0\r\nX: %b\r\n\r\n", TEXT, "trailer"),
    ],
)
def test_each_byte_is_accepted_only_where_allowed(around, allowed, fault):
    for byte in EVERY_BYTE:
        expected = "whole" if byte[0] in allowed else fault
        assert (byte, read_chunks(around % byte)[0]) == (byte, expected)


def test_only_hex_digits_are_digits_of_a_size():
    for byte in EVERY_BYTE:
        if byte in b"\r;":
            continue  # the size ends there
        digit = int(byte, 16) if byte[0] in string.hexdigits.encode() else None
        if digit is None:
            assert (byte, read_chunks(b"1" + byte)[0]) == (byte, "incomplete" if byte in b" \t" else "size")  # fmt: skip
        else:
            contents = b"x" * (16 + digit)
            body = b"1%b\r\n%b\r\n0\r\n\r\n" % (byte, contents)
            assert read_chunks(body) == ("whole", len(body), contents)


def test_extensions_and_trailers_are_skipped():
    body = b'3;a;bc=de ; f = "g\\"h"\r\nabc\r\n0;x\r\nT: u\r\n\r\n'
    assert read_chunks(body + b"next") == ("whole", len(body), b"abc")
    assert assert_agreement(body)


def test_limits():
    body = b"2\r\nab\r\n" * 3 + b"0\r\n\r\n"
    assert read_chunks(body, most_chunks=3)[0] == "whole"
    assert read_chunks(body, most_chunks=2)[0] == "count"
    assert read_chunks(body, most_bytes=6)[0] == "whole"
    assert read_chunks(body, most_bytes=5)[0] == "length"


def test_long_lines_and_trailers_are_refused():
    """A line has 8,190 bytes at most with its end, and the whole trailer section 65,536."""
    line = 8190 - len(b"2;\r\n")
    for longer, found in ((0, "whole"), (1, "size")):
        body = b"2;" + b"x" * (line + longer) + b"\r\nab\r\n0\r\n\r\n"
        assert read_chunks(body)[0] == found
    for longer, found in ((0, "whole"), (1, "trailer")):
        assert read_chunks(b"0\r\nX:" + b"y" * (line + longer) + b"\r\n\r\n")[0] == found
        lines = (b"X:" + b"y" * line + b"\r\n") * 8 + b"X:" + b"y" * (10 + longer) + b"\r\n\r\n"
        assert len(lines) == 65_536 + longer
        assert read_chunks(b"0\r\n" + lines)[0] == found


def test_sizes_of_64_bits():
    largest = b"f" * 16 + b"\r\n"
    for body in (largest, b"00" + largest, b"1\r\na\r\n" + largest):
        assert read_chunks(body, most_bytes=2**64 - 1)[0] == "incomplete"
        assert read_chunks(body, most_bytes=2**64 - 2)[0] == "length"

"""llhttp and gunicorn's Python parser frame heads as ksrv's head parser does, if all accept them.

Nothing is asked in the other direction. httptools shows neither lengths nor offsets, so it is fed
byte by byte: the head must be complete exactly with its last byte, and so must the message.
"""

from contextlib import suppress

import httptools
import pytest
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.native.wire_parsers import HeadRules, classify_head
from tests.support.wire.gunicorn_parser import gunicorn_parser
from tests.support.wire.http_heads import HOSTILE, INFER, NATIVE, PROBE, READY

RULES = HeadRules(body=4096)
SECOND = b"GET /second HTTP/1.1\r\nHost: y\r\n\r\n"


class Llhttp:
    """Reports of httptools, each with the number of bytes fed so far."""

    def __init__(self):
        self.fed = 0
        self.fields = []
        self.url = b""
        self.heads = []
        self.ends = []
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.fields.append((name, value))

    def on_headers_complete(self):
        self.heads.append((self.fed, self.parser.should_keep_alive(), self.parser.should_upgrade()))

    def on_message_complete(self):
        self.ends.append(self.fed)

    def feed(self, data):
        for index in range(len(data)):
            self.fed += 1
            self.parser.feed_data(data[index : index + 1])


def fields_of(head):
    lines = head.split(b"\r\n")[1:-2]
    return [(name, value.strip(b" \t")) for name, value in (line.split(b":", 1) for line in lines)]


def body_of(said):
    """A body that the head announces; a chunked body has five bytes."""
    return b"3\r\nxxx\r\n2\r\nxx\r\n0\r\n\r\n" if said.chunked else b"x" * said.content_length


def assert_llhttp_agrees(head, said):
    body = body_of(said)
    reader = Llhttp()
    reader.feed(head)
    assert reader.heads == [(len(head), not said.close, False)]
    assert reader.parser.get_method() == head.split(b" ", 1)[0]
    assert reader.url == head.split(b" ", 2)[1]
    assert [(n, v.strip(b" \t")) for n, v in reader.fields] == fields_of(head)
    reader.feed(body)
    assert reader.ends == [len(head) + len(body)]
    assert reader.parser.get_http_version() == ("1.0" if said.http_1_0 else "1.1")
    if said.close:
        return
    reader.url = b""
    reader.feed(SECOND)
    assert reader.url == b"/second"
    assert len(reader.ends) == 2


def assert_gunicorn_agrees(head, said, peer=("127.0.0.1", 1)):
    body = body_of(said)
    parser = gunicorn_parser(head + body + SECOND, peer)
    first = next(parser)
    assert isinstance(first, Request)
    if said.chunked:
        assert isinstance(first.body.reader, ChunkedReader)
    else:
        assert isinstance(first.body.reader, LengthReader)
        assert first.body.reader.length == said.content_length
    assert first.should_close() == said.close
    assert first._expected_100_continue == said.expects_continue
    assert first.method.encode() == head.split(b" ", 1)[0]
    assert first.path.encode() == head.split(b" ", 2)[1]
    assert (first.query, first.fragment) == ("", "")
    assert first.version == (1, 0 if said.http_1_0 else 1)
    expected = [(name.decode().upper(), value.decode()) for name, value in fields_of(head)]
    assert first.headers == expected
    assert first.body.read() == (b"xxxxx" if said.chunked else body)
    if said.close:
        assert next(parser, None) is None
    else:
        assert next(parser).path == "/second"


def assert_framing(head, said):
    """Check that a message of the app is framed alike by all."""
    body = body_of(said)
    for peer in (("127.0.0.1", 1), ("192.0.2.1", 1)):
        try:
            parser = gunicorn_parser(head + body + SECOND, peer)
            first = next(parser)
        except ParseException:  # what a trusted proxy must not say: refused, and no more is read
            continue
        assert isinstance(first.body.reader, ChunkedReader if said.chunked else LengthReader)
        assert first.body.read() == (b"xxxxx" if said.chunked else body)
        assert parser.unreader.read() == SECOND
    reader = Llhttp()
    # Tabs around lengths and codings, and versions above 1.1, llhttp refuses: so it frames nothing.
    with suppress(httptools.HttpParserUpgrade, httptools.HttpParserError):
        reader.feed(head)
        reader.feed(body)
        assert reader.ends == [len(head) + len(body)]


def assert_agreement(data):
    """Check the property on `data`; return whether the request-head classifier accepted it."""
    said = classify_head(data, RULES)
    if said.verdict == "app" and said.content_length < 1 << 20:  # no longer body is made
        assert_framing(data[: said.length], said)
    if said.verdict != "native":
        return False
    head = data[: said.length]
    assert_llhttp_agrees(head, said)
    assert_gunicorn_agrees(head, said)
    assert_gunicorn_agrees(head, said, peer=("192.0.2.1", 1))
    return True


@pytest.mark.parametrize("head", NATIVE.values(), ids=NATIVE)
def test_native_heads(head):
    assert assert_agreement(head)


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_hostile_corpus_is_refused(head):
    assert not assert_agreement(head)


@pytest.mark.parametrize("head", [INFER, READY, PROBE], ids=["infer", "ready", "probe"])
def test_every_byte_replaced_removed_and_doubled(head):
    accepted = 0
    for at in range(len(head)):
        accepted += assert_agreement(head[:at] + head[at + 1 :])
        accepted += assert_agreement(head[:at] + head[at : at + 1] + head[at:])
        for byte in range(256):
            changed = head[:at] + bytes([byte]) + head[at + 1 :]
            said = classify_head(changed, RULES)
            # llhttp and gunicorn are slow: they judge a sample of the harmless letters.
            if said.verdict == "native" and (byte % 16 == at % 16 or byte < 0x30):
                accepted += assert_agreement(changed)
    assert accepted > len(head)


NAMES = st.sampled_from(
    [
        "Host", "Content-Length", "Content-Type", "Connection", "Accept-Encoding", "Expect", "TE",
        "Transfer-Encoding", "Upgrade", "Trailer", "Inference-Header-Content-Length", "Keep-Alive",
        "HTTP2-Settings", "Content-Encoding", "X-Forwarded-Proto",
        "X-Forwarded-Protocol", "X-Forwarded-Ssl", "X-A", "x_a", "Cookie", "Script-Name", "A", "",
    ]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [
            "1", "2", "0", "10", "+1", "1, 1", "keep-alive", "close", "Keep-Alive", "upgrade", "chunked",
            "identity", "gzip", "gzip;q=0", "https", "http", "on", "off", "ssl", "100-continue",
            "h2c", "localhost", "", "a b", "\ta",
        ]
    ),
    st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=12),
)  # fmt: skip
PADDING = st.sampled_from(["", " ", "  ", "\t", " \t"])
CASES = st.sampled_from([str, str.lower, str.upper, str.swapcase])


@st.composite
def field(draw):
    name = draw(CASES)(draw(NAMES))
    return f"{name}{draw(st.sampled_from([':', ':', ':', ' :', '']))}{draw(PADDING)}{draw(VALUES)}{draw(PADDING)}"


@st.composite
def grammar_head(draw):
    target = draw(
        st.sampled_from(
            [
                "/v2/models/add/infer",
                "/v2/models/a/versions/1/infer",
                "/v2/health/live",
                "/v2",
                "/v2/models/add",
                "/v2/models/a/versions/1/ready",
            ]
        )
    )
    line = f"{draw(st.sampled_from(['POST', 'POST', 'GET', 'post', 'PUT']))} {target} HTTP/1.{draw(st.sampled_from('1110'))}"
    base = ["Host: x", "Content-Length: 3"] if draw(st.booleans()) else ["Host: x"]
    fields = draw(st.permutations(base + draw(st.lists(field(), max_size=5))))
    end = draw(st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"]))
    return (end.join([line, *fields]) + "\r\n\r\n").encode("latin-1")


@examples(1500)
@given(grammar_head())
def test_grammar_made_heads(head):
    assert_agreement(head)


@st.composite
def mutated_head(draw):
    native = list(NATIVE.values())
    data = bytearray(draw(st.sampled_from([*native, *HOSTILE.values()])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 3))
        data[at : at + size] = draw(
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b"\r\n", b"\r\n\r\n", b"\n", b"\0", b": ", b"\r\n ", b"0", b"_"]),
            )
        )
    return bytes(data)


@examples(1500)
@given(mutated_head(), st.lists(st.integers(0, 60), max_size=6))
def test_mutated_heads_in_any_split(data, pieces):
    assert_agreement(data)
    whole = classify_head(data, RULES)
    split = classify_head(data, RULES, pieces)
    assert (split.verdict, split.length) == (whole.verdict, whole.length)

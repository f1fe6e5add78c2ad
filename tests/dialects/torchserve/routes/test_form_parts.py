"""The parts of raw, urlencoded and multipart bodies. tests/integration/images sends the other malformed forms."""

import pytest

from ksrv.dialects.torchserve.routes.form_parts import read_parts
from ksrv.errors import InvalidRequest
from ksrv.protocol.forms.multipart import MAX_PARTS

KIND = 'multipart/form-data; boundary="b1"'


def parts(body, kind=KIND, query=()):
    return {
        part.name: (bytes(part.value), part.content_type)
        for part in read_parts(memoryview(body), kind, query)
    }


def multipart(*entries, boundary=b"b1", preamble=b""):
    pieces = [preamble]
    for head, content in entries:
        pieces.append(b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n")
    return b"".join(pieces) + b"--" + boundary + b"--\r\n"


def named(name, more=b""):
    return b'Content-Disposition: form-data; name="' + name + b'"' + more


def test_raw_body_is_one_part():
    assert parts(b"abc", "image/jpeg") == {"body": (b"abc", "image/jpeg")}
    assert parts(b"", None) == {"body": (b"", "")}


def test_query_comes_first_and_the_last_of_a_name_stays():
    found = parts(b"x", None, [("q", "5"), ("q", "6"), ("body", "no")])
    assert found == {"q": (b"6", ""), "body": (b"x", "")}


def test_urlencoded_fields():
    kind = "application/x-www-form-urlencoded; charset=utf-8"
    assert parts(b"a=1&b=%C3%A9&a=&c", kind) == {
        "a": (b"", ""),
        "b": ("é".encode(), ""),
        "c": (b"", ""),
    }
    with pytest.raises(InvalidRequest, match="cannot be read"):
        parts(b"a=%ff", kind)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        parts(b"&".join(b"a%d=1" % number for number in range(MAX_PARTS + 1)), kind)


def test_multipart_parts():
    body = multipart(
        (named(b"data", b'; filename="t.jpg"\r\nContent-Type: image/jpeg'), b"\xff\r\n--b1x\xd8"),
        (named(b"k"), b""),
        (named(b"field", b"\r\nContent-Type: application/json"), b"{}"),
        (named(b"unnamed", b'; filename=""\r\nContent-Type: text/plain'), b"t"),
        (named(b"foreign", b"; filename*=UTF-8''t\r\nContent-Type: text/plain"), b"t"),
        (b"content-disposition: form-data; name=plain", b"v"),
        (named(b"binary", b"\r\nContent-Transfer-Encoding: Binary\r\nX: 1\r\nX: 2"), b"="),
        preamble=b"ignored\r\n",
    )
    assert parts(body) == {
        "data": (b"\xff\r\n--b1x\xd8", "image/jpeg"),
        "k": (b"", ""),
        "field": (b"{}", ""),
        "unnamed": (b"t", "text/plain"),
        "foreign": (b"t", "text/plain"),
        "plain": (b"v", ""),
        "binary": (b"=", ""),
    }
    assert parts(b"--b1--") == {}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "without its closing boundary"),
        (multipart((named(b""), b"v")), "part 0 .* has no name"),
        (multipart((named(b"a", b"\nContent-Type: a/b"), b"v")), "part 0 .* is malformed"),
        (multipart((named(b"a", b"\r\n folded"), b"v")), "part 0 .* is malformed"),
        (multipart((named(b"a", b"\r\n" + named(b"b")), b"v")), "part 0 .* is malformed"),
        (multipart((named(b"a", b"; junk"), b"v")), "is malformed at character 21"),
    ],
)
def test_malformed_multipart_is_refused(body, text):
    with pytest.raises(InvalidRequest, match=text):
        parts(body)

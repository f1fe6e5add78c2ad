import pytest

from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import Limits
from ksrv.server.http.json_body import DOCUMENT_BYTES, parse_document


def parse(text: bytes):
    return parse_document(memoryview(text), Limits())


def test_an_empty_body_is_an_empty_object():
    assert parse(b"") == parse(b" \r\n") == parse(b"{}") == {}


def test_the_depth_is_bounded():
    deep = b"[" * 63 + b"]" * 63
    assert parse(b'{"a":' + deep + b"}")
    with pytest.raises(
        InvalidRequest, match=r"deeper than the limit --limits-json-depth \(64 levels"
    ):
        parse(b'{"a":[' + deep + b"]}")
    with pytest.raises(
        InvalidRequest, match=r"deeper than the limit --limits-json-depth \(64 levels"
    ):
        parse(b"[" * DOCUMENT_BYTES)


def test_brackets_in_strings_are_text():
    assert parse(b'{"a":"' + b"[" * 100 + b'\\"[' + b'"}')["a"].endswith('"[')


@pytest.mark.parametrize("text", [b"null", b"[]", b'"x"', b"{", b"\xff", b"{}{}", b"1"])
def test_anything_but_an_object_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse(text)


def test_the_size_is_bounded():
    document = b'{"a":"' + b"x" * (DOCUMENT_BYTES - 8) + b'"}'
    assert len(document) == DOCUMENT_BYTES
    parse(document)
    with pytest.raises(BodyTooLarge, match=str(DOCUMENT_BYTES)):
        parse(document + b" ")

import pytest

from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.server.http.json_body import DOCUMENT_BYTES, parse_document


def parse(text: bytes):
    return parse_document(memoryview(text), Limits())


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

"""The head parser's verdicts, faults and limits do not depend on how reads split the bytes."""

import pytest

from tests.support.native.wire_parsers import HeadRules, classify_head
from tests.support.wire.http_heads import (
    INFER,
    LIVE,
    with_fields,
)

RULES = HeadRules(body=1 << 30)
NOT_NATIVE = ("app", "refused")


def verdict(head, rules=RULES, pieces=()):
    return classify_head(head, rules, pieces).verdict


def test_every_byte_of_a_value_is_classified():
    for byte in range(256):
        text = bytes([byte])
        expected = "app" if byte >= 0x80 else "native" if byte == 9 or 0x20 <= byte < 0x7F else "refused"  # fmt: skip
        for value in (text, b"1234567" + text, text + b"1234567", b"12345678" * 2 + text + b"1"):
            assert (value, verdict(with_fields(b"Content-Length: 2", b"X: " + value))) == (value, expected)  # fmt: skip


LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_every_byte_of_a_name_is_classified():
    for byte in range(0x21, 0x7F):
        one = bytes([byte])
        letter, digit = one in LETTERS, one.isdigit()
        target = classify_head(b"GET /v2/models/a" + one + b" HTTP/1.1\r\nHost: x\r\n\r\n", RULES)
        assert (one, target.verdict == "native") == (one, letter or digit or one in b"-._")
        field = verdict(with_fields(b"Content-Length: 2", b"X" + one + b"Y: z"))
        native = letter or digit or one in b"-:"
        expected = "native" if native else "app" if one in b"!#$%&'*+.^_`|~" else "refused"
        assert (one, field) == (one, expected)
        host = classify_head(LIVE.replace(b"Host: x", b"Host: a" + one + b"b"), RULES).fault
        assert (one, host == "none") == (one, letter or digit or one in b"-._~!$&'()*+;=")
        method = classify_head(LIVE.replace(b"GET", b"AB" + one), RULES).fault
        upper = one in LETTERS[:26]
        assert (one, method == "none") == (one, upper or digit or one in b"!$%&'*+-.^_`|~")


HOSTS = [b"", b"  ", b"\t", b"a", b"a.B-c_d~!$&'()*+;=9", b"a%41", b"%4a%aFb", b"x:", b"x:80", b"[::1]", b"[::1]:80", b"[fe80::1%25e]", b" a\t", b"\ta  "]  # fmt: skip
NO_HOSTS = [b":80", b":", b"a,b", b"a/b", b"a b", b"a%", b"a%4", b"a%4g", b"a%g4", b"[::1", b"[]", b"[", b"]", b"[::1]x", b"[::1]80",
            b"a:b", b"a:8x", b"a:80:90", b"::1", b"a]", b"a@b", b"a#b", b"a\"b"]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "right"), [(host, True) for host in HOSTS] + [(host, False) for host in NO_HOSTS]
)
def test_hosts_are_validated(host, right):
    said = classify_head(LIVE.replace(b"Host: x", b"Host:" + host), RULES)
    assert (said.verdict, said.fault) == (("native", "none") if right else ("refused", "host"))


def test_each_limit_is_exact():
    body = HeadRules(body=5)
    assert verdict(with_fields(b"Content-Length: 5"), body) == "native"
    assert verdict(with_fields(b"Content-Length: 6"), body) == "app"

    line = INFER.index(b"\r\n")
    assert verdict(INFER, HeadRules(body=9, request_line=line)) == "native"
    assert verdict(INFER, HeadRules(body=9, request_line=line - 1)) in NOT_NATIVE

    assert verdict(INFER, HeadRules(body=9, fields=7)) == "native"
    assert verdict(INFER, HeadRules(body=9, fields=6)) in NOT_NATIVE

    widest = len(b"Content-Type: application/octet-stream\r\n")
    assert verdict(INFER, HeadRules(body=9, field_size=widest)) == "native"
    assert verdict(INFER, HeadRules(body=9, field_size=widest - 1)) in NOT_NATIVE

    assert verdict(INFER, HeadRules(body=9, head=len(INFER))) == "native"
    assert verdict(INFER, HeadRules(body=9, head=len(INFER) - 1)) in NOT_NATIVE


def test_endless_head_is_refused_at_the_limit():
    endless = b"POST /v2/models/add/infer HTTP/1.1\r\n" + b"X: " + b"a" * 20_000
    rules = HeadRules(body=1, longest_head=18_000)
    assert verdict(endless[:17_999], rules) == "incomplete"
    for data in (endless[:18_000], endless):
        said = classify_head(data, rules)
        assert (said.verdict, said.fault) == ("refused", "too long")


LIVE_LINE = b"GET /v2/health/live HTTP/1.1"


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (b"\r\n\r\n", "request line"),
        (LIVE.replace(b"GET", b"get"), "method"),
        (LIVE.replace(b"GET", b"GO"), "method"),
        (LIVE.replace(b"GET", b"G" * 21), "method"),
        (LIVE.replace(b"GET /", b"GET  /"), "target"),
        (LIVE.replace(LIVE_LINE, b"OPTIONS *x HTTP/1.1"), "target"),
        (LIVE.replace(LIVE_LINE, b"GET 1a://x HTTP/1.1"), "target"),
        (LIVE.replace(LIVE_LINE, b"GET a_b://x HTTP/1.1"), "target"),
        (LIVE.replace(b"1.1", b"2.0"), "version"),
        (LIVE.replace(b"1.1", b"1.11"), "version"),
        (with_fields(b"X"), "field line"),
        (with_fields(b"X : x"), "field name"),
        (with_fields(b"X: x", b" x"), "folded"),
        (with_fields(b"X: x\x01"), "field value"),
        (with_fields(b"Content-Length: x"), "length"),
        (with_fields(b"Content-Length: 1 2"), "length"),
        (with_fields(b"Content-Length: 1", b"Content-Length: 1"), "lengths"),
        (with_fields(b"Content-Length: 1", b"Transfer-Encoding: chunked"), "length and coding"),
        (with_fields(b"Transfer-Encoding: gzip, chunked"), "coding"),
        (with_fields(b"Transfer-Encoding: chunked").replace(b"1.1", b"1.0"), "old coding"),
        (LIVE.replace(b"Host: x\r\n", b""), "no host"),
        (with_fields(b"Host: x"), "hosts"),
        (LIVE.replace(b"Host: x", b"Host: x/y"), "host"),
        (LIVE.replace(b" /", b" http://x,y/"), "host"),
        (LIVE.replace(b" /", b" http:///"), "host"),
        (with_fields(b"Content-Type: a/b", b"Content-Type: a/b"), "content types"),
        (with_fields(b"Expect: x"), "expectation"),
    ],
)
def test_each_fault_is_detected(head, fault):
    said = classify_head(head, RULES)
    assert (said.verdict, said.fault) == ("refused", fault)
    assert (said.content_length, said.json_length, said.chunked) == (0, None, False)


def test_huge_length_does_not_overflow():
    for length in (b"1" + b"0" * 18, b"9" * 40):
        said = classify_head(with_fields(b"Content-Length: " + length), RULES)
        assert (said.verdict, said.content_length) == ("app", 2**63 - 1)

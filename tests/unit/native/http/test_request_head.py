"""The head parser's verdicts, faults and limits, and that they do not depend on splitting."""

import itertools

import pytest

from ksrv._native.http.request_head import FAULTS, HeadRules, classify_head
from ksrv.limits import Limits
from ksrv.server.http.head_faults import head_error
from tests.support.wire.http_heads import (
    HOSTILE,
    INFER,
    LIVE,
    NATIVE,
    READY,
    VERSIONED,
    with_fields,
)

RULES = HeadRules(body=1 << 30)
NOT_NATIVE = ("app", "refused")


def verdict(head, rules=RULES, pieces=()):
    return classify_head(head, rules, pieces).verdict


def test_what_a_native_infer_head_says():
    said = classify_head(INFER + b"hello", RULES)
    assert (said.verdict, said.route, said.name, said.version) == ("native", "infer", "add", "")
    assert (said.length, said.content_length, said.json_length) == (len(INFER), 5, 3)


def test_a_target_with_a_version():
    said = classify_head(VERSIONED, RULES)
    assert (said.verdict, said.name, said.version) == ("native", "a.b_c-D", "12")
    assert (said.content_length, said.json_length) == (1, None)


@pytest.mark.parametrize(
    ("target", "route", "name", "version"),
    [
        ("/v2", "server", "", ""),
        ("/v2/models/add", "metadata", "add", ""),
        ("/v2/models/ready", "metadata", "ready", ""),
        ("/v2/models/add/ready", "model ready", "add", ""),
        ("/v2/models/add/versions/1", "metadata", "add", "1"),
        ("/v2/models/stats/versions/1", "metadata", "stats", "1"),
        ("/v2/models/add/versions/1/ready", "model ready", "add", "1"),
    ],
)
def test_descriptions(target, route, name, version):
    said = classify_head(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), RULES)
    assert (said.verdict, said.route) == ("native", route)
    assert (said.name, said.version, said.content_length) == (name, version, 0)


@pytest.mark.parametrize(
    "line",
    [
        "GET /v2/",
        "GET /v2x",
        "GET /v2/models",
        "GET /v2/models/",
        "GET /v2/models/stats",
        "GET /v2/models/add/",
        "GET /v2/models/add/stats",
        "GET /v2/models/add/config",
        "GET /v2/models/add/infer",
        "GET /v2/models/../ready",
        "GET /v2/models/add?x",
        "GET /v2/models/add/ready/",
        "GET /v2/models/a%64d",
        "GET /v2/models/add/versions",
        "GET /v2/models/add/versions/",
        "POST /v2",
        "POST /v2/models/add",
        "POST /v2/models/add/ready",
        "HEAD /v2/models/add",
    ],
)
def test_other_targets_are_the_apps(line):
    assert classify_head(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), RULES).verdict == "app"


@pytest.mark.parametrize(("head", "route"), [(LIVE, "live"), (READY, "ready")])
def test_health(head, route):
    said = classify_head(head, RULES)
    assert (said.verdict, said.route, said.content_length) == ("native", route, 0)


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_whatever_is_odd_is_not_mine(head):
    assert verdict(head) in NOT_NATIVE


@pytest.mark.parametrize("head", [*NATIVE.values(), *HOSTILE.values()], ids=[*NATIVE, *HOSTILE])
def test_the_verdict_does_not_depend_on_the_split(head):
    whole = verdict(head)
    assert verdict(head, pieces=[1] * len(head)) == whole
    for cut in range(len(head)):
        assert verdict(head, pieces=[cut]) == whole
        assert verdict(head[:cut]) in ("incomplete", whole)


@pytest.mark.parametrize("head", NATIVE.values(), ids=NATIVE)
def test_every_prefix_of_a_native_head_is_incomplete(head):
    assert {verdict(head[:cut]) for cut in range(len(head))} == {"incomplete"}


@pytest.mark.parametrize(
    "field",
    [
        b"Accept-Encoding: gzip, deflate, br, zstd",
        b"Accept-Encoding: identity",
        b"Connection: Keep-Alive",
        b"Connection:keep-alive",
        b"X-Empty:",
        b"X-Tab:\ta\tb",
        b"X-Long: " + b"a" * 1000,
        b"Inference-Header-Content-Length: 2",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_fields_that_stay_native(field):
    assert verdict(with_fields(b"Content-Length: 2", field)) == "native"


@pytest.mark.parametrize(
    "kind",
    [
        b"image/jpeg",
        b"Image/PNG",
        b" image/webp",
        b"\timage/gif",
        b"multipart/form-data; boundary=b",
    ],
)
def test_images_and_forms_are_the_apps_without_a_header_length(kind):
    fields = (b"Content-Length: 2", b"Content-Type:" + kind)
    assert verdict(with_fields(*fields)) == "app"
    assert verdict(with_fields(*fields, b"Inference-Header-Content-Length: 2")) == "native"
    assert verdict(with_fields(b"Content-Length: 2", b"Content-Type: imagex/" + kind)) == "native"


def test_settings_that_make_a_field_matter():
    page = (b"Content-Length: 2", b"Origin: http://x")
    assert verdict(with_fields(*page)) == "native"
    assert verdict(with_fields(*page), HeadRules(body=100, origins=True)) == "app"
    compressing = HeadRules(body=100, compression=True)
    assert (
        verdict(with_fields(b"Content-Length: 2", b"Accept-Encoding: gzip"), compressing) == "app"
    )
    proxied = HeadRules(body=100, scheme_names=["X-FORWARDED-PROTO", "X-FORWARDED-SSL"])
    once = (b"Content-Length: 2", b"X-Forwarded-Proto: https")
    assert verdict(with_fields(*once), proxied) == "native"
    assert verdict(with_fields(*once, b"x-forwarded-ssl: on"), proxied) in NOT_NATIVE
    assert verdict(with_fields(*once, once[1]), proxied) in NOT_NATIVE


def test_each_limit_at_and_above_it():
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


def test_a_head_that_never_ends_is_given_up_at_the_limit():
    endless = b"POST /v2/models/add/infer HTTP/1.1\r\n" + b"X: " + b"a" * 20_000
    rules = HeadRules(body=1, longest_head=18_000)
    assert verdict(endless[:17_999], rules) == "incomplete"
    for data in (endless[:18_000], endless):
        said = classify_head(data, rules)
        assert (said.verdict, said.fault) == ("refused", "too long")


def test_bytes_of_the_body_are_not_looked_at():
    for body in itertools.chain([b"\0\n\r\n\r\n"], (bytes([byte]) for byte in range(256))):
        assert verdict(INFER + body) == "native"


def test_a_bare_line_feed_or_nul_is_given_up_at_once():
    for data in (b"GET / HTTP/1.1\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        assert classify_head(data, RULES).fault == "line end"


def test_the_framing_of_messages_for_the_app():
    other = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n%s\r\n"
    said = classify_head(other % b"Content-Length: 70000\r\nExpect: 100-continue\r\n", RULES)
    assert (said.verdict, said.content_length, said.chunked) == ("app", 70_000, False)
    assert said.expects_continue
    said = classify_head(other % b"Transfer-Encoding: chunked\r\nConnection: close\r\n", RULES)
    assert (said.verdict, said.content_length, said.chunked) == ("app", 0, True)
    assert said.close
    assert verdict(HOSTILE["length, then coding"]) == "refused"


QUESTIONS = [
    b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v2/models/m/stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /v1/config HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n",
]
OTHERS = [
    b"GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n",
    b"GET /v2/ HTTP/1.1\r\nHost: x\r\nTRANSFER-ENCODING: chunked\r\n\r\n",
    b"GET /v2/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
    b"GET /predictions/m HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v2x HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize(
    ("head", "question"), [(head, True) for head in QUESTIONS] + [(head, False) for head in OTHERS]
)
def test_questions(head, question):
    said = classify_head(head, RULES)
    assert (said.verdict, said.question) == ("app", question)


LIVE_LINE = b"GET /v2/health/live HTTP/1.1"


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (b"\r\n\r\n", "request line"),
        (b"GET /v2\r\n\r\n", "request line"),
        (LIVE.replace(b"GET", b"get"), "method"),
        (LIVE.replace(b"GET", b"G(T"), "method"),
        (LIVE.replace(b"GET", b"GO"), "method"),
        (LIVE.replace(b"GET", b"G" * 21), "method"),
        (LIVE.replace(b"GET /", b"GET  /"), "target"),
        (LIVE.replace(b"/v2", b"v2"), "target"),
        (LIVE.replace(LIVE_LINE, b"GET * HTTP/1.1"), "target"),
        (LIVE.replace(LIVE_LINE, b"GET x:80 HTTP/1.1"), "target"),
        (LIVE.replace(b"/live", b"/l\xefve"), "target"),
        (LIVE.replace(b"1.1", b"2.0"), "version"),
        (LIVE.replace(b"1.1", b"1.11"), "version"),
        (LIVE.replace(b"HTTP", b"http"), "version"),
        (with_fields(b"X"), "field line"),
        (with_fields(b": x"), "field line"),
        (with_fields(b"X : x"), "field name"),
        (with_fields(b"X[]: x"), "field name"),
        (with_fields(b"X: x", b" x"), "folded"),
        (with_fields(b"X: x", b"\tx"), "folded"),
        (with_fields(b"X: x\x01"), "field value"),
        (with_fields(b"X: x\ry"), "field value"),
        (with_fields(b"Content-Length: x"), "length"),
        (with_fields(b"Content-Length: 1", b"Content-Length: 1"), "lengths"),
        (with_fields(b"Content-Length: 1", b"Transfer-Encoding: chunked"), "length and coding"),
        (with_fields(b"Transfer-Encoding: gzip, chunked"), "coding"),
        (with_fields(b"Transfer-Encoding: chunked").replace(b"1.1", b"1.0"), "old coding"),
        (LIVE.replace(b"Host: x\r\n", b""), "no host"),
        (with_fields(b"Host: x"), "hosts"),
        (LIVE.replace(b"Host: x", b"Host: x/y"), "host"),
        (with_fields(b"Content-Type: a/b", b"Content-Type: a/b"), "content types"),
        (with_fields(b"Expect: x"), "expectation"),
    ],
)
def test_each_fault(head, fault):
    said = classify_head(head, RULES)
    assert (said.verdict, said.fault) == ("refused", fault)


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (HeadRules(body=9, request_line=10), "request line too long"),
        (HeadRules(body=9, fields=2), "too many fields"),
        (HeadRules(body=9, field_size=20), "field too long"),
    ],
)
def test_the_faults_of_limits(rules, fault):
    assert classify_head(INFER, rules).fault == fault


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_every_fault_has_a_sentence(fault):
    error = head_error(fault, Limits())
    assert 400 <= error.http_status < 500 and error.message


def test_a_mount_prefix_is_no_part_of_the_route():
    rules = HeadRules(body=1 << 30, mount="/a/b")
    below = INFER.replace(b" /v2", b" /a/b/v2")
    said = classify_head(below, rules)
    assert (said.verdict, said.route, said.name) == ("native", "infer", "add")
    for other in (INFER, INFER.replace(b" /v2", b" /a/bv2"), INFER.replace(b" /v2", b" /a/v2")):
        assert verdict(other, rules) == "app"
    with pytest.raises(ValueError, match="at most 128 bytes"):
        HeadRules(body=1, mount="/" + "a" * 128)


@pytest.mark.parametrize(
    ("fields", "length"),
    [(b"Content-Length: 002", 2), (b"Content-Length:\t2\t", 2), (b"Content-Length: 00", 0)],
)
def test_lengths_that_are_odd_and_right(fields, length):
    said = classify_head(with_fields(fields), RULES)
    assert (said.verdict, said.content_length) == ("app", length)


def test_a_length_beyond_every_limit_stays_beyond():
    said = classify_head(with_fields(b"Content-Length: " + b"9" * 40), RULES)
    assert (said.verdict, said.content_length) == ("app", 2**63 - 1)


def test_scheme_names_are_bounded():
    with pytest.raises(ValueError, match="at most 8"):
        HeadRules(body=1, scheme_names=[f"X-{index}" for index in range(9)])
    with pytest.raises(ValueError, match="1 to 47 bytes"):
        HeadRules(body=1, scheme_names=["X" * 48])

"""The request-head classifier's three verdicts, its limits, and that they do not depend on splitting."""

import itertools

import pytest

from ksrv._native.http.request_head import HeadRules, classify_head
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
def test_other_targets_are_gunicorns(line):
    assert classify_head(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), RULES).verdict == (
        "gunicorn"
    )


@pytest.mark.parametrize(("head", "route"), [(LIVE, "live"), (READY, "ready")])
def test_health(head, route):
    said = classify_head(head, RULES)
    assert (said.verdict, said.route, said.content_length) == ("native", route, 0)


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_whatever_is_odd_is_not_mine(head):
    assert verdict(head) == "gunicorn"


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


def test_settings_that_make_a_field_matter():
    compressing = HeadRules(body=100, compression=True)
    assert verdict(with_fields(b"Content-Length: 2", b"Accept-Encoding: gzip"), compressing) == (
        "gunicorn"
    )
    proxied = HeadRules(body=100, scheme_names=["X-FORWARDED-PROTO", "X-FORWARDED-SSL"])
    once = (b"Content-Length: 2", b"X-Forwarded-Proto: https")
    assert verdict(with_fields(*once), proxied) == "native"
    assert verdict(with_fields(*once, b"x-forwarded-ssl: on"), proxied) == "gunicorn"
    assert verdict(with_fields(*once, once[1]), proxied) == "gunicorn"


def test_each_limit_at_and_above_it():
    body = HeadRules(body=5)
    assert verdict(with_fields(b"Content-Length: 5"), body) == "native"
    assert verdict(with_fields(b"Content-Length: 6"), body) == "gunicorn"

    line = INFER.index(b"\r\n")
    assert verdict(INFER, HeadRules(body=9, request_line=line)) == "native"
    assert verdict(INFER, HeadRules(body=9, request_line=line - 1)) == "gunicorn"

    assert verdict(INFER, HeadRules(body=9, fields=7)) == "native"
    assert verdict(INFER, HeadRules(body=9, fields=6)) == "gunicorn"

    widest = len(b"Content-Type: application/octet-stream\r\n")
    assert verdict(INFER, HeadRules(body=9, field_size=widest)) == "native"
    assert verdict(INFER, HeadRules(body=9, field_size=widest - 1)) == "gunicorn"

    assert verdict(INFER, HeadRules(body=9, head=len(INFER))) == "native"
    assert verdict(INFER, HeadRules(body=9, head=len(INFER) - 1)) == "gunicorn"


def test_a_head_that_never_ends_is_given_up_at_the_limit():
    endless = b"POST /v2/models/add/infer HTTP/1.1\r\n" + b"X: " + b"a" * 20_000
    assert verdict(endless[:16_383]) == "incomplete"
    assert verdict(endless[:16_384]) == "gunicorn"
    assert verdict(endless) == "gunicorn"


def test_bytes_of_the_body_are_not_looked_at():
    for body in itertools.chain([b"\0\n\r\n\r\n"], (bytes([byte]) for byte in range(256))):
        assert verdict(INFER + body) == "native"


def test_a_bare_line_feed_or_nul_is_given_up_at_once():
    assert verdict(b"GET / HTTP/1.1\n") == "gunicorn"
    assert verdict(b"\x16\x03\x01\x02\x00\x01\x00") == "gunicorn"


def test_small_bodies_of_other_routes_are_worth_waiting_for():
    other = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    assert classify_head(other % 10, RULES).buffered_body == 10
    assert classify_head(other % 65_536, RULES).buffered_body == 65_536
    assert classify_head(other % 65_537, RULES).buffered_body == 0
    assert classify_head(HOSTILE["length, then coding"], RULES).buffered_body == 0


def test_scheme_names_are_bounded():
    with pytest.raises(ValueError, match="at most 8"):
        HeadRules(body=1, scheme_names=[f"X-{index}" for index in range(9)])
    with pytest.raises(ValueError, match="1 to 47 bytes"):
        HeadRules(body=1, scheme_names=["X" * 48])

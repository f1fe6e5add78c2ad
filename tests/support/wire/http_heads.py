"""Request heads that several tests share: heads for the native server, and the hostile corpus that no server may accept."""

from tests.support.wire.http_probes import (
    CODINGS,
    FIELDS,
    HOSTS,
    LENGTHS,
    LINES,
    REFUSED,
    REQUEST_LINES,
)

INFER = (
    b"POST /v2/models/add/infer HTTP/1.1\r\n"
    b"Host: localhost:8080\r\n"
    b"User-Agent: test/1.0\r\n"
    b"Accept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\n"
    b"Inference-Header-Content-Length: 3\r\n"
    b"Content-Type: application/octet-stream\r\n"
    b"Content-Length: 5\r\n"
    b"\r\n"
)
VERSIONED = (
    b"POST /v2/models/a.b_c-D/versions/12/infer HTTP/1.1\r\nhost:x\r\ncontent-length:1\r\n\r\n"
)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"
METADATA = b"GET /v2/models/add HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s\r\n\r\n"
MODEL_READY = b"GET /v2/models/add/versions/1/ready HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING = INFER.replace(b"keep-alive", b"close")
PROBE = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: Close\t\r\n\r\n")  # as Kubernetes sends it
NATIVE = {
    "infer": INFER,
    "versioned": VERSIONED,
    "live": LIVE,
    "ready": READY,
    "server": LIVE.replace(b"/health/live", b""),
    "metadata": METADATA,
    "model ready": MODEL_READY,
    "closing": CLOSING,
    "chunked": CLOSING.replace(b"Content-Length: 5", b"Transfer-Encoding: Chunked "),
    "chunked expectation": CLOSING.replace(
        b"Content-Length: 5", b"Expect: 100-continue\r\nTransfer-Encoding: chunked"
    ),
    "expectation": CLOSING.replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue \r\n\r\n"),
    "HTTP/1.0": READY.replace(b"1.1", b"1.0"),
    "HTTP/1.0 that stays open": INFER.replace(b"1.1", b"1.0"),
    "HTTP/1.0 that closes": CLOSING.replace(b"1.1", b"1.0"),
    "probe": PROBE,
}


def with_fields(*fields: bytes) -> bytes:
    """An infer head with Host and the given fields."""
    return (
        b"POST /v2/models/add/infer HTTP/1.1\r\nHost: x\r\n"
        + b"".join(field + b"\r\n" for field in fields)
        + b"\r\n"
    )


LENGTH = b"Content-Length: 2"

# Heads that llhttp and gunicorn refuse, or frame differently: framing that smuggles, and what the probes refuse.
HOSTILE = {
    name: probe.message
    for probes in (HOSTS, LINES, REQUEST_LINES, FIELDS, LENGTHS, CODINGS)
    for name, probe in probes.items()
    if probe.statuses == REFUSED and name != "less than the length"
} | {
    "coding, then length": with_fields(b"Transfer-Encoding: chunked", LENGTH),
    "tab before the length": with_fields(b"Content-Length:\t2"),
    "no length": with_fields(b"Accept: */*"),
    "length nought": with_fields(b"Content-Length: 0"),
    "tab after the coding": with_fields(b"Transfer-Encoding: chunked\t"),
    "tab after keep-alive of HTTP/1.0": READY.replace(b"1.1", b"1.0").replace(
        b"Accept: */*", b"Connection: keep-alive\t"
    ),
    "chunked metadata": LIVE.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "chunked and compressed": with_fields(b"Transfer-Encoding: chunked", b"Content-Encoding: gzip"),
    "bad field name": with_fields(LENGTH, b"X(: a"),
    "underscore in a name": with_fields(LENGTH, b"Content_Length: 3"),
    "byte above ASCII": with_fields(LENGTH, b"X: caf\xe9"),
    "expectation twice": with_fields(LENGTH, b"Expect: 100-continue", b"Expect: 100-continue"),
    "expectation and more": with_fields(LENGTH, b"Expect: 100-continue, x"),
    "expectation of HTTP/1.0": INFER.replace(b"1.1\r\n", b"1.0\r\nExpect: 100-continue\r\n"),
    "expectation without a body": LIVE.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"),
    "upgrade": with_fields(LENGTH, b"Connection: upgrade", b"Upgrade: h2c"),
    "connection closes and more": with_fields(LENGTH, b"Connection: close, TE"),
    "connection twice": with_fields(LENGTH, b"Connection: keep-alive", b"Connection: close"),
    "connection closes twice": with_fields(LENGTH, b"Connection: close", b"Connection: close"),
    "connection list": with_fields(LENGTH, b"Connection: keep-alive, TE"),
    "te": with_fields(LENGTH, b"TE: trailers"),
    "content encoding": with_fields(LENGTH, b"Content-Encoding: gzip"),
    "JSON length nought": with_fields(LENGTH, b"Inference-Header-Content-Length: 0"),
    "JSON length above the body": with_fields(LENGTH, b"Inference-Header-Content-Length: 3"),
    "JSON length twice": with_fields(
        LENGTH, b"Inference-Header-Content-Length: 1", b"Inference-Header-Content-Length: 1"
    ),
    "JSON length with a sign": with_fields(LENGTH, b"Inference-Header-Content-Length: +1"),
    "JSON length of 11 words": with_fields(LENGTH, b"Inference-Header-Content-Length: 12abc"),
    "empty line first": b"\r\n" + INFER,
    "other method": INFER.replace(b"POST", b"PUT"),
    "HTTP/1.2": INFER.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "HTTP/1.00": INFER.replace(b"HTTP/1.1", b"HTTP/1.00"),
    "HTTP/1.0 without a host": LIVE.replace(b"1.1\r\nHost: x", b"1.0"),
    "HTTP/1.11": INFER.replace(b"HTTP/1.1", b"HTTP/1.11"),
    "query": INFER.replace(b"/infer", b"/infer?x=1"),
    "fragment": INFER.replace(b"/infer", b"/infer#x"),
    "percent sign": INFER.replace(b"/add/", b"/a%64d/"),
    "slash at the end": INFER.replace(b"/infer", b"/infer/"),
    "absolute target": INFER.replace(b"/v2", b"http://x/v2"),
    "empty model": INFER.replace(b"/add/", b"//"),
    "model of a dot": INFER.replace(b"/add/", b"/./"),
    "model of two dots": INFER.replace(b"/add/", b"/../"),
    "version of two dots": INFER.replace(b"/add/", b"/add/versions/../"),
    "two slashes in front": INFER.replace(b" /v2", b" //v2"),
    "model of 64 bytes": INFER.replace(b"/add/", b"/" + b"a" * 64 + b"/"),
    "other route": INFER.replace(b"/infer", b"/generate"),
    "health with a body": LIVE.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n"),
    "health with an empty body": LIVE.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
    "health by POST": LIVE.replace(b"GET", b"POST"),
    "health with a query": LIVE.replace(b"/live", b"/live?x"),
}

"""Requirements of HTTP/1.1 as data: messages, the statuses of their answers, and the section of the RFC.

The cases are taken from the public probes of HTTP/1.1 servers (such as Http11Probe's compliance, smuggling and malformed
suites), with more of the kind. A good message, `GOOD`, follows each message. If a message is refused, `GOOD` must get no
answer, because the server cannot know where it begins.
"""

from typing import NamedTuple

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
GOOD = b"GET /v2/health/live HTTP/1.1\r\nHost: good\r\n\r\n"
HEX = b"%x" % len(BODY)
CHUNK = HEX + b"\r\n" + BODY + b"\r\n"
END = b"0\r\n\r\n"


class Probe(NamedTuple):
    """A message and the statuses of all answers on its connection."""

    section: str
    message: bytes
    statuses: tuple[int, ...]


REFUSED = (400,)
SERVED = (200, 200)


def get(*fields: bytes, line: bytes = b"GET /v2 HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *fields, b"", b""])


def hosted(*fields: bytes, line: bytes = b"GET /v2 HTTP/1.1") -> bytes:
    """The same with a Host."""
    return get(b"Host: x", *fields, line=line)


def post(*fields: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return hosted(*fields, line=b"POST /v2/models/double/infer HTTP/" + version) + body


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"


def chunked(body: bytes, *fields: bytes) -> bytes:
    return post(CHUNKED, *fields, body=body)


HOSTS = {
    "host": Probe("RFC 9112 3.2", get(b"Host: x:80"), SERVED),
    "host missing": Probe("RFC 9112 3.2", get(b"Accept: */*"), REFUSED),
    "host empty": Probe("RFC 9112 3.2", get(b"Host:"), SERVED),
    "host doubled": Probe("RFC 9112 3.2", get(b"Host: a", b"Host: b"), REFUSED),
    "host doubled alike": Probe("RFC 9112 3.2", get(b"Host: a", b"host: a"), REFUSED),
    "host with userinfo": Probe("RFC 9112 3.2", get(b"Host: user@a"), REFUSED),
    "host with a path": Probe("RFC 9112 3.2", get(b"Host: a/b"), REFUSED),
    "host of a list": Probe("RFC 9110 7.2", get(b"Host: a,b"), REFUSED),
    "host with a scheme": Probe("RFC 9110 7.2", get(b"Host: http://a"), REFUSED),
    "host with a query": Probe("RFC 9110 7.2", get(b"Host: a?b"), REFUSED),
    "host with a fragment": Probe("RFC 9110 7.2", get(b"Host: a#b"), REFUSED),
    "host with a blank": Probe("RFC 9110 7.2", get(b"Host: a b"), REFUSED),
    "host with two ports": Probe("RFC 9110 7.2", get(b"Host: a:1:2"), REFUSED),
    "host with an odd port": Probe("RFC 9110 7.2", get(b"Host: a:80x"), REFUSED),
    "host of a port alone": Probe("RFC 9110 7.2", get(b"Host: :80"), REFUSED),
    "host of half an IPv6 address": Probe("RFC 3986 3.2.2", get(b"Host: [::1"), REFUSED),
    "host of an address without brackets": Probe("RFC 3986 3.2.2", get(b"Host: ::1"), REFUSED),
    "host with text after an address": Probe("RFC 3986 3.2.2", get(b"Host: [::1]a"), REFUSED),
    "host of no address": Probe("RFC 3986 3.2.2", get(b"Host: []"), REFUSED),
    "host with half an escape": Probe("RFC 3986 2.1", get(b"Host: a%2"), REFUSED),
    "host above ASCII": Probe("RFC 3986 3.2.2", get(b"Host: \xe4"), REFUSED),
    "host in quotes": Probe("RFC 3986 3.2.2", get(b'Host: "a"'), REFUSED),
    "host of an IPv6 address": Probe("RFC 3986 3.2.2", get(b"Host: [::1]:80"), SERVED),
    "host of HTTP/1.0 missing": Probe("RFC 9112 3.2", get(line=b"GET /v2 HTTP/1.0"), (200,)),
    "host of HTTP/1.0 doubled": Probe(
        "RFC 9112 3.2", get(b"Host: a", b"Host: a", line=b"GET /v2 HTTP/1.0"), REFUSED
    ),
}
LINES = {
    "empty line first": Probe("RFC 9112 2.2", b"\r\n" + hosted(), SERVED),
    "two empty lines first": Probe("RFC 9112 2.2", b"\r\n\r\n" + hosted(), REFUSED),
    "line feed first": Probe("RFC 9112 2.2", b"\n" + hosted(), REFUSED),
    "bare LF after the request line": Probe(
        "RFC 9112 2.2", b"GET /v2 HTTP/1.1\nHost: x\r\n\r\n", REFUSED
    ),
    "bare LF after a field": Probe("RFC 9112 2.2", b"GET /v2 HTTP/1.1\r\nHost: x\n\r\n", REFUSED),
    "bare LF alone": Probe("RFC 9112 2.2", b"GET /v2 HTTP/1.1\nHost: x\n\n", REFUSED),
    "bare CR alone": Probe("RFC 9112 2.2", b"GET /v2 HTTP/1.1\rHost: x\r\r", REFUSED),
    "bare CR in a value": Probe("RFC 9112 2.2", hosted(b"X: a\rb"), REFUSED),
    "NUL in a value": Probe("RFC 9110 5.5", hosted(b"X: a\0b"), REFUSED),
    "NUL in the target": Probe("RFC 9112 2.2", hosted(line=b"GET /v2\0 HTTP/1.1"), REFUSED),
    "blank line before the fields": Probe(
        "RFC 9112 2.2", b"GET /v2 HTTP/1.1\r\n Host: x\r\n\r\n", REFUSED
    ),
    "garbage": Probe("RFC 9112 2.2", bytes(range(128, 256)) + b"\r\n\r\n", REFUSED),
    "TLS": Probe("RFC 9112 2.2", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", REFUSED),
    "HTTP/2": Probe("RFC 9113 3.4", b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n", REFUSED),
}
REQUEST_LINES = {
    "two blanks": Probe("RFC 9112 3", hosted(line=b"GET  /v2 HTTP/1.1"), REFUSED),
    "two blanks before the version": Probe(
        "RFC 9112 3", hosted(line=b"GET /v2  HTTP/1.1"), REFUSED
    ),
    "a tab": Probe("RFC 9112 3", hosted(line=b"GET\t/v2\tHTTP/1.1"), REFUSED),
    "a blank first": Probe("RFC 9112 3", hosted(line=b" GET /v2 HTTP/1.1"), REFUSED),
    "a blank at the end": Probe("RFC 9112 3", hosted(line=b"GET /v2 HTTP/1.1 "), REFUSED),
    "no target": Probe("RFC 9112 3", hosted(line=b"GET HTTP/1.1"), REFUSED),
    "no version": Probe("RFC 9112 2.3", b"GET /v2\r\n\r\n", REFUSED),
    "a target above ASCII": Probe("RFC 9112 3.2", hosted(line=b"GET /\xc3\xa4 HTTP/1.1"), REFUSED),
    "overlong UTF-8 in the target": Probe(
        "RFC 3629 3", hosted(line=b"GET /\xc0\xaf HTTP/1.1"), REFUSED
    ),
    "a fragment": Probe("RFC 9112 3.2", hosted(line=b"GET /v2#a HTTP/1.1"), (400, 200)),
    "a long target": Probe("RFC 9112 3", hosted(line=b"GET /%s HTTP/1.1" % (b"a" * 9000)), (414,)),
    "a target without a slash": Probe("RFC 9112 3.2", hosted(line=b"GET v2 HTTP/1.1"), REFUSED),
    "absolute form": Probe("RFC 9112 3.2.2", hosted(line=b"GET http://y/v2 HTTP/1.1"), SERVED),
    "absolute form without a path": Probe(
        "RFC 9112 3.2.2", hosted(line=b"GET http://y HTTP/1.1"), SERVED
    ),
    "absolute form without a host": Probe(
        "RFC 9110 4.2.1", hosted(line=b"GET http:///v2 HTTP/1.1"), REFUSED
    ),
    "absolute form with userinfo": Probe(
        "RFC 9110 4.2.4", hosted(line=b"GET http://u@y/v2 HTTP/1.1"), REFUSED
    ),
    "authority form of GET": Probe("RFC 9112 3.2.3", hosted(line=b"GET x:80 HTTP/1.1"), REFUSED),
    "CONNECT": Probe("RFC 9112 3.2.3", hosted(line=b"CONNECT x:80 HTTP/1.1"), REFUSED),
    "CONNECT to a path": Probe("RFC 9112 3.2.3", hosted(line=b"CONNECT /v2 HTTP/1.1"), (405,)),
    "OPTIONS *": Probe("RFC 9112 3.2.4", hosted(line=b"OPTIONS * HTTP/1.1"), (204, 200)),
    "GET *": Probe("RFC 9112 3.2.4", hosted(line=b"GET * HTTP/1.1"), REFUSED),
    "TRACE": Probe("RFC 9110 9.3.8", hosted(line=b"TRACE /v2 HTTP/1.1"), (405, 200)),
    "an unknown method": Probe("RFC 9110 9.1", hosted(line=b"BREW /v2 HTTP/1.1"), (400, 200)),
    "a method in lower case": Probe("RFC 9110 9.1", hosted(line=b"get /v2 HTTP/1.1"), REFUSED),
    "a method with a bracket": Probe("RFC 9110 9.1", hosted(line=b"GE(T /v2 HTTP/1.1"), REFUSED),
    "a long method": Probe("RFC 9112 3", hosted(line=b"A" * 1000 + b" /v2 HTTP/1.1"), REFUSED),
    "HTTP/0.9": Probe("RFC 9112 2.3", b"GET /v2 HTTP/0.9\r\nHost: x\r\n\r\n", REFUSED),
    "HTTP/1": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/1"), REFUSED),
    "HTTP/1.2": Probe("RFC 9110 2.5", hosted(line=b"GET /v2 HTTP/1.2"), SERVED),
    "HTTP/2.0": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/2.0"), REFUSED),
    "HTTP/9.9": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/9.9"), REFUSED),
    "HTTP/01.1": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/01.1"), REFUSED),
    "HTTP/1.01": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/1.01"), REFUSED),
    "HTTP/ 1.1": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 HTTP/ 1.1"), REFUSED),
    "http/1.1": Probe("RFC 9112 2.3", hosted(line=b"GET /v2 http/1.1"), REFUSED),
}
FIELDS = {
    "a blank before the colon": Probe("RFC 9112 5.1", hosted(b"X : a"), REFUSED),
    "a tab before the colon": Probe("RFC 9112 5.1", hosted(b"X\t: a"), REFUSED),
    "a blank before the length's colon": Probe(
        "RFC 9112 5.1", post(b"Content-Length : 2", body=b"{}"), REFUSED
    ),
    "a blank before the coding's colon": Probe(
        "RFC 9112 5.1", post(b"Transfer-Encoding : chunked", body=END), REFUSED
    ),
    "no colon": Probe("RFC 9112 5", hosted(b"X"), REFUSED),
    "no name": Probe("RFC 9112 5", hosted(b": a"), REFUSED),
    "a bracket in a name": Probe("RFC 9110 5.6.2", hosted(b"X[a]: b"), REFUSED),
    "a name above ASCII": Probe("RFC 9110 5.6.2", hosted(b"X\xc3\xa4: b"), REFUSED),
    "a tab in a name": Probe("RFC 9110 5.6.2", hosted(b"X\ta: b"), REFUSED),
    "an odd name": Probe("RFC 9110 5.6.2", hosted(b"!#$%&'*+-.^_`|~1aA: b"), SERVED),
    "an empty value": Probe("RFC 9110 5.5", hosted(b"X:"), SERVED),
    "a value above ASCII": Probe("RFC 9110 5.5", hosted(b"X: \xc3\xa4"), SERVED),
    "a control character in a value": Probe("RFC 9110 5.5", hosted(b"X: a\x01"), REFUSED),
    "DEL in a value": Probe("RFC 9110 5.5", hosted(b"X: a\x7f"), REFUSED),
    "a fold": Probe("RFC 9112 5.2", hosted(b"X: a", b" b"), REFUSED),
    "a fold with a tab": Probe("RFC 9112 5.2", hosted(b"X: a", b"\tb"), REFUSED),
    "a folded coding": Probe(
        "RFC 9112 5.2", post(b"Transfer-Encoding:", b" chunked", body=END), REFUSED
    ),
    "a long value": Probe("RFC 6585 5", hosted(b"X: " + b"a" * 70_000), (431,)),
    "a long name": Probe("RFC 6585 5", hosted(b"X" * 70_000 + b": a"), (431,)),
    "many fields": Probe("RFC 6585 5", hosted(*[b"X: a"] * 200), (431,)),
    "two content types": Probe("RFC 9110 8.3", post(LENGTH, *[b"Content-Type: a/b"] * 2), REFUSED),
    "a field that reads as another": Probe(
        "RFC 9110 17.10", post(LENGTH, b"Content_Length: 3"), SERVED
    ),
}
LENGTHS = {
    "length": Probe("RFC 9112 6.2", post(LENGTH), SERVED),
    "length nought": Probe("RFC 9112 6.2", post(b"Content-Length: 0", body=b""), (400, 200)),
    "no length": Probe("RFC 9112 6.3", post(body=b""), (400, 200)),
    "length of letters": Probe("RFC 9112 6.3", post(b"Content-Length: abc", body=b""), REFUSED),
    "length with a plus": Probe("RFC 9112 6.3", post(b"Content-Length: +2", body=b"{}"), REFUSED),
    "length with a minus": Probe("RFC 9112 6.3", post(b"Content-Length: -1", body=b""), REFUSED),
    "length of minus nought": Probe("RFC 9112 6.3", post(b"Content-Length: -0", body=b""), REFUSED),
    "length in octal": Probe("RFC 9112 6.3", post(b"Content-Length: 0o2", body=b"{}"), REFUSED),
    "length in hexadecimal": Probe(
        "RFC 9112 6.3", post(b"Content-Length: 0x2", body=b"{}"), REFUSED
    ),
    "length with an underscore": Probe(
        "RFC 9112 6.3", post(b"Content-Length: 1_0", body=b""), REFUSED
    ),
    "length with a blank inside": Probe(
        "RFC 9112 6.3", post(b"Content-Length: 1 0", body=b""), REFUSED
    ),
    "length with a point": Probe("RFC 9112 6.3", post(b"Content-Length: 2.0", body=b"{}"), REFUSED),
    "length of other digits": Probe(
        "RFC 9112 6.3", post(b"Content-Length: \xb2", body=b"{}"), REFUSED
    ),
    "length empty": Probe("RFC 9112 6.3", post(b"Content-Length:", body=b""), REFUSED),
    "length with zeros before it": Probe(
        "RFC 9110 8.6", post(b"Content-Length: 00%d" % len(BODY)), SERVED
    ),
    "length with blanks around it": Probe(
        "RFC 9110 5.5", post(b"Content-Length: \t%d \t" % len(BODY)), SERVED
    ),
    "length beyond 64 bits": Probe(
        "RFC 9110 8.6", post(b"Content-Length: " + b"9" * 30, body=b""), REFUSED
    ),
    "length above the limit": Probe(
        "RFC 9110 15.5.14", post(b"Content-Length: 99999999999", body=b""), (413,)
    ),
    "two lengths": Probe("RFC 9112 6.3", post(LENGTH, b"Content-Length: 3"), REFUSED),
    "two equal lengths": Probe("RFC 9112 6.3", post(LENGTH, LENGTH), REFUSED),
    "a list of lengths": Probe("RFC 9112 6.3", post(b"Content-Length: 5, 6", body=b""), REFUSED),
    "a list of equal lengths": Probe(
        "RFC 9112 6.3", post(b"Content-Length: 2, 2", body=b"{}"), REFUSED
    ),
    "less than the length": Probe("RFC 9112 6.2", post(b"Content-Length: 9999"), REFUSED),
}
CODINGS = {
    "chunked": Probe("RFC 9112 7.1", chunked(CHUNK + END), SERVED),
    "chunked in capitals": Probe(
        "RFC 9112 7", post(b"Transfer-Encoding: CHUNKED", body=CHUNK + END), SERVED
    ),
    "chunked with blanks around it": Probe(
        "RFC 9110 5.5", post(b"Transfer-Encoding: \tchunked \t", body=CHUNK + END), SERVED
    ),
    "length and coding": Probe("RFC 9112 6.1", chunked(CHUNK + END, LENGTH), REFUSED),
    "coding of HTTP/1.0": Probe(
        "RFC 9112 6.1", post(CHUNKED, body=CHUNK + END, version=b"1.0"), REFUSED
    ),
    "two codings": Probe("RFC 9112 6.1", chunked(CHUNK + END, CHUNKED), REFUSED),
    "chunked twice": Probe(
        "RFC 9112 7", post(b"Transfer-Encoding: chunked, chunked", body=END), REFUSED
    ),
    "chunked not last": Probe(
        "RFC 9112 6.3", post(b"Transfer-Encoding: chunked, gzip", body=END), REFUSED
    ),
    "compressed and chunked": Probe(
        "RFC 9112 6.1", post(b"Transfer-Encoding: gzip, chunked", body=END), REFUSED
    ),
    "xchunked": Probe("RFC 9112 6.1", post(b"Transfer-Encoding: xchunked", body=END), REFUSED),
    "identity": Probe("RFC 9112 7", post(LENGTH, b"Transfer-Encoding: identity"), REFUSED),
    "an empty coding": Probe("RFC 9112 6.1", post(b"Transfer-Encoding:", body=END), REFUSED),
    "a coding after a comma": Probe(
        "RFC 9110 5.6.1", post(b"Transfer-Encoding: ,chunked", body=END), REFUSED
    ),
    "a coding before a comma": Probe(
        "RFC 9110 5.6.1", post(b"Transfer-Encoding: chunked,", body=END), REFUSED
    ),
    "a coding with a parameter": Probe(
        "RFC 9112 7", post(b"Transfer-Encoding: chunked;a=b", body=END), REFUSED
    ),
    "a quoted coding": Probe(
        "RFC 9112 7", post(b'Transfer-Encoding: "chunked"', body=END), REFUSED
    ),
    "a coding after a vertical tab": Probe(
        "RFC 9112 6.1", post(b"Transfer-Encoding: \x0bchunked", body=END), REFUSED
    ),
    "a coding after a form feed": Probe(
        "RFC 9112 6.1", post(b"Transfer-Encoding: \x0cchunked", body=END), REFUSED
    ),
    "a coding with NUL": Probe(
        "RFC 9110 5.5", post(b"Transfer-Encoding: chunked\0", body=END), REFUSED
    ),
    "TE asks nothing here": Probe("RFC 9110 10.1.4", hosted(b"TE: trailers"), SERVED),
}
CHUNKS = {
    "several chunks": Probe(
        "RFC 9112 7.1", chunked(b"1\r\n{\r\n%x\r\n%b\r\n" % (len(BODY) - 1, BODY[1:]) + END), SERVED
    ),
    "a size in capitals": Probe(
        "RFC 9112 7.1", chunked(HEX.upper() + CHUNK[len(HEX) :] + END), SERVED
    ),
    "a size with zeros before it": Probe("RFC 9112 7.1", chunked(b"000" + CHUNK + END), SERVED),
    "an extension": Probe(
        "RFC 9112 7.1.1", chunked(HEX + b";a=b" + CHUNK[len(HEX) :] + END), SERVED
    ),
    "a trailer": Probe("RFC 9112 7.1.2", chunked(CHUNK + b"0\r\nX: a\r\n\r\n"), SERVED),
    "no chunks": Probe("RFC 9112 7.1", chunked(END), (400, 200)),
    "no end": Probe("RFC 9112 8", chunked(CHUNK), REFUSED),
    "a size with 0x": Probe("RFC 9112 7.1", chunked(b"0x" + CHUNK + END), REFUSED),
    "a size with an underscore": Probe("RFC 9112 7.1", chunked(b"1_0\r\n" + END), REFUSED),
    "a size after a blank": Probe("RFC 9112 7.1", chunked(b" " + CHUNK + END), REFUSED),
    "a size with a minus": Probe("RFC 9112 7.1", chunked(b"-1\r\n" + END), REFUSED),
    "a size with a plus": Probe("RFC 9112 7.1", chunked(b"+" + CHUNK + END), REFUSED),
    "a size beyond 64 bits": Probe("RFC 9112 7.1", chunked(b"F" * 17 + b"\r\n" + END), REFUSED),
    "a chunk without its CRLF": Probe("RFC 9112 7.1", chunked(CHUNK[:-2] + END), REFUSED),
    "a chunk longer than its size": Probe(
        "RFC 9112 7.1", chunked(b"5\r\nabcdefg\r\n" + END), REFUSED
    ),
    "bare LF after a size": Probe(
        "RFC 9112 7.1", chunked(HEX + b"\n" + BODY + b"\r\n" + END), REFUSED
    ),
    "bare LF after a chunk": Probe("RFC 9112 7.1", chunked(CHUNK[:-2] + b"\n" + END), REFUSED),
    "bare CR after a size": Probe(
        "RFC 9112 2.2", chunked(HEX + b"\r" + BODY + b"\r\n" + END), REFUSED
    ),
    "bare LF in an extension": Probe(
        "RFC 9112 7.1.1", chunked(HEX + b";a\n" + BODY + b"\r\n" + END), REFUSED
    ),
}
CONNECTIONS = {
    "close": Probe("RFC 9112 9.6", hosted(b"Connection: close"), (200,)),
    "close, te": Probe("RFC 9112 9.6", hosted(b"Connection: close, te"), (200,)),
    "te, close": Probe("RFC 9112 9.6", hosted(b"Connection: te,\tClose"), (200,)),
    "close in a second field": Probe(
        "RFC 9110 5.3", hosted(b"Connection: te", b"Connection: close"), (200,)
    ),
    "keep-alive and close": Probe("RFC 9112 9.3", hosted(b"Connection: keep-alive, close"), (200,)),
    "keep-alive": Probe("RFC 9112 9.3", hosted(b"Connection: keep-alive"), SERVED),
    "HTTP/1.0": Probe("RFC 9112 9.3", hosted(line=b"GET /v2 HTTP/1.0"), (200,)),
    "HTTP/1.0 that stays open": Probe(
        "RFC 9112 9.3", hosted(b"Connection: keep-alive", line=b"GET /v2 HTTP/1.0"), SERVED
    ),
    "expectation": Probe("RFC 9110 10.1.1", post(LENGTH, b"Expect: 100-continue"), SERVED),
    "another expectation": Probe("RFC 9110 10.1.1", hosted(b"Expect: 200-ok"), (417,)),
    "expectation of HTTP/1.0": Probe(
        "RFC 9110 10.1.1", post(LENGTH, b"Expect: 100-continue", version=b"1.0"), (200,)
    ),
    "upgrade to WebSocket": Probe(
        "RFC 9110 7.8", hosted(b"Connection: Upgrade", b"Upgrade: websocket"), SERVED
    ),
    "upgrade by POST": Probe(
        "RFC 6455 4.1", post(LENGTH, b"Connection: Upgrade", b"Upgrade: websocket"), SERVED
    ),
    "upgrade without the option": Probe("RFC 9110 7.8", hosted(b"Upgrade: h2c"), SERVED),
    "a GET with a body": Probe("RFC 9110 9.3.1", hosted(b"Content-Length: 2") + b"{}", SERVED),
}
PROBES = {
    **HOSTS, **LINES, **REQUEST_LINES, **FIELDS, **LENGTHS, **CODINGS, **CHUNKS, **CONNECTIONS
}  # fmt: skip


def answers(received: bytes) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the statuses of all final answers, and the last answer's head and body."""
    statuses, head, body = [], b"", b""
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        length = int(fields.get(b"content-length", 0))
        body, received = rest[:length], rest[length:]
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            statuses.append(status)
    return tuple(statuses), head, body

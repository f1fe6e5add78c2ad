"""TLS records that arrive in two pieces, over HTTP/1.1 and gRPC."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.http2_wire import ACK, PING, PREFACE, frame
from tests.support.wire.http_reader import open_connection

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
PINGED = frame(PING, 0, 0, b"answered")
PONG = frame(PING, ACK, 0, b"answered")
PROTOCOLS = {"http/1.1": (b"", LIVE, b"\r\n\r\n"), "h2": (PREFACE, PINGED, PONG)}
"""The first bytes of a client, a request that the server answers without a model, and the end of its answer."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = write_double(tmp_path_factory.mktemp("models")).parent
    key, cert = self_signed(tmp_path_factory.mktemp("tls"))
    # No connection makes a call here, and slow clients are not what is tested.
    with Server(models, tls_cert=str(cert), tls_key=str(key), head_timeout=300) as server:
        yield server


def has_been_read(sock) -> bool:
    """Whether the server has read everything that was sent over a connection."""
    (own, port), (host, server_port) = sock.getsockname(), sock.getpeername()

    def shown(address, number):
        return f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}:{number:04X}"

    here, there = shown(own, port), shown(host, server_port)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    waiting = {(row[1], row[2]): row[4].split(":") for row in rows}
    return int(waiting[here, there][0], 16) == int(waiting[there, here][1], 16) == 0


@pytest.mark.parametrize("cut", [3, 5, 12])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_record_in_two_pieces_does_not_hide_the_next(server, protocol, cut):
    """The library reads only the second piece, and no event reports the record that came with it."""
    first, question, wanted = PROTOCOLS[protocol]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)

    def record(content):
        session.write(content)
        return outgoing.read()

    with open_connection(server.http if protocol == "http/1.1" else server.grpc, 60) as client:

        def until_done(step):
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    return step()
                client.sendall(outgoing.read())
                incoming.write(client.recv(1 << 16))

        until_done(session.do_handshake)
        client.sendall(outgoing.read() + (record(first) if first else b""))
        for _ in range(5):
            begun, rest = (record(part) for part in (question[:7], question[7:]))
            client.sendall(begun[:cut])
            wait_until(lambda: has_been_read(client))
            client.sendall(begun[cut:] + rest)
            told = b""
            while wanted not in told:
                told += until_done(lambda: session.read(1 << 14))

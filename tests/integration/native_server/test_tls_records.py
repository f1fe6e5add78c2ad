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
    with Server(
        models, tls_cert=str(cert), tls_key=str(key), head_timeout=300, transfer_grace=300
    ) as server:
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


class TlsClient:
    """A client that makes records, and sends them when its test says.

    Args:
        client: The socket.
        protocol: The protocol to agree on.
    """

    def __init__(self, client: socket.socket, protocol: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([protocol])
        self._client, self._incoming, self._outgoing = client, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing)
        self._until_done(self._session.do_handshake)
        client.sendall(self._outgoing.read())

    def _until_done(self, step):
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return step()
            self._client.sendall(self._outgoing.read())
            received = self._client.recv(1 << 16)
            assert received, "the server closed the connection"
            self._incoming.write(received)

    def record(self, content: bytes) -> bytes:
        """Return the records of a content, unsent."""
        self._session.write(content)
        return self._outgoing.read()

    def read_until(self, end: bytes) -> bytes:
        """Return what the server sends up to an end."""
        received = b""
        while end not in received:
            received += self._until_done(lambda: self._session.read(1 << 14))
        return received


@pytest.mark.parametrize("cut", [3, 5, 12])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_record_in_two_pieces_does_not_hide_the_next(server, protocol, cut):
    """The library reads only the second piece, and no event reports the record that came with it."""
    first, question, wanted = PROTOCOLS[protocol]
    with open_connection(server.http if protocol == "http/1.1" else server.grpc, 60) as client:
        tls = TlsClient(client, protocol)
        if first:
            client.sendall(tls.record(first))
        for _ in range(5):
            begun, rest = tls.record(question[:7]), tls.record(question[7:])
            client.sendall(begun[:cut])
            wait_until(lambda: has_been_read(client))
            client.sendall(begun[cut:] + rest)
            tls.read_until(wanted)


def test_large_body_is_answered_when_its_first_record_arrives_in_two_pieces(server):
    """Fewer bytes than the missing contents follow, because the library holds half of a record."""
    body = b" " * 70_000  # more, and the kernel reports its full buffer, whatever the mark
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with open_connection(server.http, 60) as client:
        tls = TlsClient(client, "http/1.1")
        begin, records = tls.record(head), tls.record(body)
        client.sendall(begin + records[:8000])
        wait_until(lambda: has_been_read(client))
        client.sendall(records[8000:])
        assert tls.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")

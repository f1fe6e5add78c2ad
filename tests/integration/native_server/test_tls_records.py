"""TLS 1.3 clients that renew their keys (RFC 8446 4.6.3) over HTTP/1.1 and gRPC, occasionally or all the time."""

import socket
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.http2_wire import ACK, PING, PREFACE, frame
from tests.support.wire.tls_peer import TlsPeer

ALLOWED = 32
"""Consecutive records without application data that BoringSSL's servers accept, too."""
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
PINGED = frame(PING, 0, 0, b"answered")
PONG = frame(PING, ACK, 0, b"answered")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    models = folder / "models"
    models.mkdir()
    write_double(models)
    key, cert = self_signed(folder)
    # No connection makes a call here, and slow clients are not what is tested.
    with Server(models, tls_cert=str(cert), tls_key=str(key), head_timeout=300) as server:
        yield server


class Carrier:
    """A connection, and a request that the server answers without a model."""

    def __init__(self, server, protocol):
        url = server.grpc if protocol == "grpc" else server.url.removeprefix("https://")
        host, _, port = url.rpartition(":")
        self.http = protocol == "http/1.1"
        self.peer = TlsPeer((host, int(port)), alpn="http/1.1" if self.http else "h2")
        self.question = LIVE if self.http else PINGED
        if not self.http:
            self.peer.send(self.peer.data(PREFACE))

    def __enter__(self):
        self.peer.__enter__()
        return self

    def __exit__(self, *error):
        self.peer.__exit__(*error)

    def is_answered(self) -> bool:
        """Read an answer. False if the server closed the connection."""
        wanted = b"\r\n\r\n" if self.http else PONG
        told = b""
        while wanted not in told:
            more = self.peer.read()
            if not more:
                return False
            told += more
        return True


@pytest.fixture(params=["http/1.1", "grpc"])
def connect(request, server):
    return lambda: Carrier(server, request.param)


def flooded(server) -> int:
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if 'reason="flood"' in line)


def test_client_that_only_renews_keys_is_disconnected(server, connect):
    before = flooded(server)
    with connect() as other, connect() as client:
        peer = client.peer
        peer.send(peer.key_updates(20_000) + peer.data(client.question))
        assert not client.is_answered()
        other.peer.send(other.peer.data(other.question))
        assert other.is_answered()
    wait_until(lambda: flooded(server) == before + 1)


@pytest.mark.parametrize("together", [True, False])
def test_limit_counts_consecutive_updates(connect, together):
    with connect() as client:
        peer = client.peer
        for updates in [ALLOWED] * 5 + [ALLOWED + 1]:
            renewed, asked = peer.key_updates(updates), peer.data(client.question)
            if together:
                peer.send(renewed + asked)
            else:
                for record in (renewed, asked):
                    peer.send(record)
            assert client.is_answered() == (updates == ALLOWED)


def test_key_updates_within_a_message_lose_no_bytes(connect):
    with connect() as client:
        peer = client.peer
        for _ in range(3):
            records = b"".join(
                peer.key_updates(10) + peer.data(client.question[at : at + 1])
                for at in range(len(client.question))
            )
            peer.send(records)
            assert client.is_answered()


def test_server_renews_its_keys_on_request(connect):
    with connect() as client:
        peer = client.peer
        for _ in range(20):
            peer.send(peer.key_updates(1, answered=True) + peer.data(client.question))
            assert client.is_answered()


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
def test_record_in_two_pieces_does_not_hide_the_next(connect, cut):
    """The library reads only the second piece, and no event reports the record that came with it."""
    with connect() as client:
        peer = client.peer
        for _ in range(5):
            first, second = (peer.data(part) for part in (client.question[:7], client.question[7:]))
            peer.send(first[:cut])
            wait_until(lambda: has_been_read(peer.socket))
            peer.send(first[cut:] + second)
            assert client.is_answered()

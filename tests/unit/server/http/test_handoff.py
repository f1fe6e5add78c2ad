"""Connections that the HTTP server hands over: what they ask, and what happens to those that nobody can take."""

import logging
import socket
import threading

import pytest
from gunicorn.config import Config

from ksrv.server import worker
from ksrv.server.http.handoff import HandoffSocket, TransferTimeouts, is_question
from tests.support.wait_until import wait_until
from tests.support.wire.http_heads import with_fields
from tests.unit.native.server.test_exchange import opened

QUESTIONS = [
    b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v2/models/m/ready HTTP/1.0\r\n\r\n",
    b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET ",
    b"GET /v1/config HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n",
]
OTHERS = [
    b"",
    b"GET /v2 HTTP/1.1\r\nHost: x\r\n",
    b"GET /v2 HTTP/1.1\nHost: x\n\n",
    b"GET /v2 HTTP/1.1\r\nContent-Length: 2\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nContent_Length : 2\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
    b"GET /predictions/m HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v2x HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("received", QUESTIONS)
def test_questions(received):
    assert is_question(received)


@pytest.mark.parametrize("received", OTHERS)
def test_what_may_wait_for_its_client_or_a_model_is_no_question(received):
    assert not is_question(received)


def test_what_a_peer_does_not_take_at_once_is_kept_where_a_thread_must_not_wait():
    ours, peer = socket.socketpair()
    data = bytes(range(256)) * 40_000
    with HandoffSocket(ours.detach(), socket.AF_UNIX, TransferTimeouts()) as sock, peer:
        sock.begin(waits=False)
        sock.sendall(data)
        sock.sendall(b"end")
        assert sock.keeps
        received = bytearray()
        peer.setblocking(False)
        while len(received) < len(data) + 3:
            try:
                received += peer.recv(1 << 20)
            except BlockingIOError:
                assert sock.keeps  # all that was sent has come
                peer.settimeout(60)
                sender = threading.Thread(target=sock.send_kept)
                sender.start()
        sender.join()
        assert bytes(received) == data + b"end"
        assert not sock.keeps


@pytest.mark.parametrize("broken", ["HandoffSocket", "HandoffConnection"])
def test_one_connection_that_cannot_be_taken_costs_no_other(monkeypatch, broken):
    taken = []

    class Worker(worker.KsrvWorker):
        def __init__(self, http_server, family):
            self.http_server, self.cfg, self.nr_conns = http_server, Config(), 0
            self.sockets, self._servers = [socket.socket(family)], [(family, ("127.0.0.1", 1))]
            self._timeouts, self.log = TransferTimeouts(), logging.getLogger("test")

        def enqueue_req(self, conn):
            taken.append(conn)

    made = getattr(worker, broken)
    failures = iter([True, False, False])

    def first_fails(*arguments):
        if next(failures):
            raise MemoryError
        return made(*arguments)

    monkeypatch.setattr(worker, broken, first_fails)
    other = with_fields(b"Content-Length: 2", b"TE: trailers") + b"{}"
    with (
        opened(None) as (http_server, client),
        socket.create_connection(client.getpeername(), 20) as second,
    ):
        slow = Worker(http_server, socket.AF_INET)
        client.sendall(other)
        wait_until(lambda: http_server.counters()["handoffs"] == 1)
        second.sendall(other)
        wait_until(lambda: http_server.counters()["handoffs"] == 2)
        slow._collect(None)
        assert client.recv(1) == b""
        assert len(taken) == slow.nr_conns == http_server.open_connections == 1
        taken.pop().sock.close()
        slow.sockets[0].close()

"""The HTTP server in one process: exchanges that are dropped, fail, or are answered twice or by other threads."""

import contextlib
import gc
import select
import socket
import threading
import weakref

import numpy as np
import pytest

from ksrv._native.http.request_head import HeadRules
from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.server import PREPARED_ANSWERS_NEEDED, HttpServer
from ksrv.server.settings import ServerSettings
from tests.support.wait_until import wait_until
from tests.support.wire.http_heads import INFER, LIVE, READY
from tests.support.wire.http_reader import read_message

ANSWERS = dict.fromkeys(
    PREPARED_ANSWERS_NEEDED, (500, b"500 Internal Server Error", b"content-length: 2\r\n", b"no")
) | dict.fromkeys(("live", "ready"), (200, b"200 OK", b"content-length: 2\r\n", b"ok"))


@contextlib.contextmanager
def opened(handler, listener=None, **settings):
    """An HTTP server with its threads, and a client."""
    with contextlib.ExitStack() as stack:
        if listener is None:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        loop = EventLoop()
        limits = ConnectionLimits(ServerSettings())
        http_server = HttpServer(
            loop, HeadRules(body=1 << 30), limits, handler, ANSWERS, **settings
        )
        http_server.listen([listener.fileno()])
        threads = [threading.Thread(target=loop.run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        http_server.accept(True)
        try:
            with socket.create_connection(listener.getsockname(), 20) as client:
                yield http_server, client
        finally:
            http_server.stop()
            loop.stop()
            for thread in threads:
                thread.join()


def answer(exchange, data=b"hello"):
    exchange.answer(200, b"200 OK", b"content-length: %d\r\n" % len(data), [data])


def exchange_once(client, request=INFER + b"01234"):
    client.sendall(request)
    return read_message(client)[:2]


def test_dropped_exchange_answers_500():
    def drop(exchange):
        cycle = [exchange]
        cycle.append(cycle)

    def then_collect(exchange):
        drop(exchange)
        del exchange
        gc.collect()

    with opened(then_collect) as (http_server, client):
        client.sendall(INFER + b"01234")
        client.settimeout(0.2)
        while True:
            gc.collect()
            with contextlib.suppress(TimeoutError):
                head, body, _ = read_message(client)
                break
        assert head.startswith(b"HTTP/1.1 500 ")
        assert body == b"no"
        assert http_server.counters()["infer"] == 1


def test_a_handler_that_raises_answers_500_and_the_threads_live_on():
    def fail(exchange):
        raise RuntimeError("broken")

    with opened(fail) as (_, client):
        assert exchange_once(client)[0].startswith(b"HTTP/1.1 500 ")
        assert exchange_once(client, LIVE)[1] == b"ok"
        assert exchange_once(client)[0].startswith(b"HTTP/1.1 500 ")


def test_a_second_answer_is_refused():
    seen = []

    def twice(exchange):
        answer(exchange)
        with pytest.raises(RuntimeError, match="answered before") as raised:
            answer(exchange)
        seen.append(raised)
        exchange.fail()

    with opened(twice) as (_, client):
        assert exchange_once(client)[1] == b"hello"
        assert exchange_once(client)[1] == b"hello"
    assert len(seen) == 2


def test_unread_answers_are_released():
    answers = []

    def send(exchange):
        data = np.zeros(20_000_000, np.uint8)
        answers.append(weakref.ref(data))
        answer(exchange, data)

    with opened(send) as (http_server, client):
        client.sendall(INFER + b"01234")
        assert client.recv(1) == b"H"
        client.close()
        wait_until(lambda: http_server.open_connections == 0)
        assert PROCESS.held == 0
        wait_until(lambda: all(answer() is None for answer in answers))


def test_a_refused_part_leaves_the_exchange_open():
    def stumble(exchange):
        with pytest.raises(TypeError):
            exchange.answer(200, b"200 OK", b"content-length: 1\r\n", [object()])
        answer(exchange)

    with opened(stumble) as (_, client):
        assert exchange_once(client)[1] == b"hello"


@pytest.mark.parametrize(("ready", "said"), [(True, b"200"), (False, b"500")])
def test_readiness_answer_is_kept_while_draining(ready, said):
    with opened(None) as (http_server, client):
        http_server.set_health(ready=ready)
        assert exchange_once(client, LIVE)[0].startswith(b"HTTP/1.1 200 ")
        http_server.drain()
        head, _ = exchange_once(client, READY)
        assert head.startswith(b"HTTP/1.1 " + said)
        assert b"connection: close" in head.lower()


def test_not_ready_answer_can_change_between_probes():
    with opened(None) as (http_server, client):
        for why in (b"a", b"because" * 200, b"c"):
            fields = b"content-length: %d\r\n" % len(why)
            unready = (503, b"503 Service Unavailable", fields, why)
            http_server.set_health(ready=False, unready=unready)
            head, body = exchange_once(client, READY)
            assert head.startswith(b"HTTP/1.1 503 ") and body == why
        http_server.set_health(ready=False)
        assert exchange_once(client, READY)[1] == b"c"


@pytest.mark.parametrize("leaves", [False, True])
def test_client_announced_to_another_process_is_accepted(leaves):
    """The other process watched the listener first, but accepts nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as other:
        other.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        told = threading.Thread(target=other.poll, args=(60,))
        told.start()
        with opened(None, listener=listener) as (http_server, client):
            told.join()
            if leaves:
                http_server.accept(False)
            assert exchange_once(client, LIVE)[1] == b"ok"


def test_unread_records_are_limited_in_bytes_and_losses_counted():
    head = LIVE.replace(
        b"\r\n\r\n", b"\r\nX: " + b"x" * 8000 + b"\r\nY: " + b"y" * 8000 + b"\r\n\r\n"
    )
    sent = 1200  # 19 MB
    with opened(None, log=True) as (http_server, client):
        for _ in range(sent):
            exchange_once(client, head)
        wait_until(lambda: http_server.counters()["answered"] == sent)
        exchange_once(client, LIVE)  # by then the last record is written
        kept = http_server.records()
        assert sum(len(record[4]) for record in kept) < 17 << 20
        assert 500 < len(kept) < sent
        assert abs(len(kept) + http_server.counters()["lost_lines"] - sent) <= 1
        exchange_once(client, LIVE)
        wait_until(lambda: len(http_server.records()) > 0)  # records are accepted again

"""The relay that tests put before a server to reach it in another way."""

import socket
import ssl
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import self_signed
from tests.support.ways import Reframer, Relay

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
LEFT_ALONE = [
    b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
    b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nContent-Length: -2\r\n\r\nab",
    b"\x16\x03\x01 no text",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n",
]


def unchunked(data):
    """The bodies of chunked messages, and whether each had a chunk of an announced length."""
    bodies = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        body = b""
        if b"Transfer-Encoding: chunked" in head:
            assert b"Content-Length" not in head
            while True:
                size, _, data = data.partition(b"\r\n")
                piece, data = data[: int(size, 16)], data[int(size, 16) + 2 :]
                if not piece:
                    break
                body += piece
        bodies.append(body)
    return bodies


@given(
    st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=20000)), max_size=4),
    st.lists(st.integers(1, 9000), min_size=1, max_size=6),
)
def test_bodies_of_a_known_length_go_in_chunks(bodies, cuts):
    sent = b"".join(GET if body is None else POST % len(body) + body for body in bodies)
    reframe, got, at = Reframer(), b"", 0
    while at < len(sent):
        for cut in cuts:
            got += reframe(sent[at : at + cut])
            at += cut
    assert unchunked(got) == [body or b"" for body in bodies]


@pytest.mark.parametrize("message", LEFT_ALONE)
def test_what_is_no_such_message_stays_as_it_is(message):
    assert Reframer()(message) == message
    assert Reframer()(GET + message + GET) == GET + message + GET


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_relay_passes_both_directions_and_their_ends_on(tmp_path, encrypts):

    key, cert = self_signed(tmp_path)
    answering = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    answering.load_cert_chain(cert, key)
    answering.set_alpn_protocols(["http/1.1"])
    data = bytes(range(256)) * 4096

    def answer(listener):
        connection, _ = listener.accept()
        if encrypts:
            connection = answering.wrap_socket(connection, server_side=True)
        with connection:
            got = b""
            while piece := connection.recv(1 << 16):
                got += piece
            connection.sendall(got[::-1])
            if encrypts:
                connection.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        relay = Relay(target, cert if encrypts else None)
        try:
            host, _, port = relay.address.rpartition(":")
            with socket.create_connection((host, int(port)), 60) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                got = b""
                while piece := client.recv(1 << 16):
                    got += piece
            assert got == data[::-1]
        finally:
            relay.close()
            thread.join()


@pytest.mark.parametrize(
    ("begin", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", "http/1.1"),
        (b"P", "http/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "h2"),
    ],
)
def test_a_relay_agrees_on_what_the_client_speaks(tmp_path, begin, protocol):
    key, cert = self_signed(tmp_path)
    answering = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    answering.load_cert_chain(cert, key)
    answering.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}", cert)
        try:
            host, _, port = relay.address.rpartition(":")
            with socket.create_connection((host, int(port)), 60) as client:
                client.sendall(begin)
                client.shutdown(socket.SHUT_WR)
                connection, _ = listener.accept()
                with answering.wrap_socket(connection, server_side=True) as encrypted:
                    assert encrypted.selected_alpn_protocol() == protocol
                    assert encrypted.recv(1 << 16) == begin
        finally:
            relay.close()

"""Sockets that ask their peers for progress and for a least rate."""

import socket

import pytest

from ksrv.server.threaded.timed_socket import PlainSocket, TransferTimeouts


def pair(**timeouts):
    ours, peer = socket.socketpair()
    return PlainSocket(ours.detach(), socket.AF_UNIX, TransferTimeouts(**timeouts)), peer


def test_a_peer_that_sends_nothing_looks_like_one_that_reset_the_connection():
    sock, peer = pair(wait=0.05)
    with sock, peer, pytest.raises(ConnectionResetError, match="no progress"):
        sock.recv(1)


def test_a_peer_that_reads_nothing_looks_like_one_that_reset_the_connection():
    sock, peer = pair(wait=0.05)
    with sock, peer, pytest.raises(ConnectionResetError, match="no progress"):
        sock.sendall(bytes(1 << 24))


def test_a_peer_below_the_least_rate_is_given_up():
    sock, peer = pair(grace=-1.0, rate=1 << 40)
    with sock, peer:
        sock.begin()
        peer.sendall(b"x")
        with pytest.raises(ConnectionResetError, match="too slow"):
            sock.recv(1)


def test_bytes_come_whole_and_in_order():
    sock, peer = pair()
    with sock, peer:
        sock.begin()
        sock.sendall(b"abc")
        assert peer.recv(10) == b"abc"
        peer.sendall(b"def")
        assert sock.recv(10) == b"def"

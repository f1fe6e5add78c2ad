"""A client of TLS that sends what Python's `ssl` sends for nobody: updates of its keys, as many as a test wants.

It drives the system's OpenSSL through memory, so that a test chooses which records leave together.
"""

import ctypes
import socket
from types import TracebackType
from typing import Any

_WANT_READ = 2
_CTRL_MIN_VERSION, _CTRL_MAX_VERSION = 123, 124


def _library() -> Any:
    """Return libssl with the types of the functions that are used here."""
    ssl = ctypes.CDLL("libssl.so.3")
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, arguments in (
        ("TLS_client_method", pointer, []),
        ("SSL_CTX_new", pointer, [pointer]),
        ("SSL_CTX_free", None, [pointer]),
        ("SSL_CTX_ctrl", ctypes.c_long, [pointer, number, ctypes.c_long, pointer]),
        ("SSL_new", pointer, [pointer]),
        ("SSL_free", None, [pointer]),
        ("SSL_set_alpn_protos", number, [pointer, ctypes.c_char_p, ctypes.c_uint]),
        ("SSL_set_bio", None, [pointer, pointer, pointer]),
        ("SSL_set_connect_state", None, [pointer]),
        ("SSL_do_handshake", number, [pointer]),
        ("SSL_key_update", number, [pointer, number]),
        ("SSL_read", number, [pointer, ctypes.c_char_p, number]),
        ("SSL_write", number, [pointer, ctypes.c_char_p, number]),
        ("SSL_get_error", number, [pointer, number]),
        ("BIO_s_mem", pointer, []),
        ("BIO_new", pointer, [pointer]),
        ("BIO_read", number, [pointer, ctypes.c_char_p, number]),
        ("BIO_write", number, [pointer, ctypes.c_char_p, number]),
        ("BIO_ctrl_pending", size, [pointer]),
    ):
        function = getattr(ssl, name)
        function.restype, function.argtypes = result, arguments
    return ssl


class TlsPeer:
    """One connection; its certificate is not checked."""

    def __init__(self, address: tuple[str, int], *, alpn: str = "", version: int = 0x0304) -> None:
        self._ssl = _library()
        self._context = self._ssl.SSL_CTX_new(self._ssl.TLS_client_method())
        for bound in (_CTRL_MIN_VERSION, _CTRL_MAX_VERSION):
            self._ssl.SSL_CTX_ctrl(self._context, bound, version, None)
        self._session = self._ssl.SSL_new(self._context)
        if alpn:
            offer = bytes([len(alpn)]) + alpn.encode()
            self._ssl.SSL_set_alpn_protos(self._session, offer, len(offer))
        self._in, self._out = (self._ssl.BIO_new(self._ssl.BIO_s_mem()) for _ in range(2))
        self._ssl.SSL_set_bio(self._session, self._in, self._out)
        self._ssl.SSL_set_connect_state(self._session)
        self.socket = socket.create_connection(address, 60)
        while (done := self._ssl.SSL_do_handshake(self._session)) != 1:
            assert self._error(done) == _WANT_READ
            self.send(self._made())
            assert self._receive(), "the server ended the handshake"
        self.send(self._made())

    def __enter__(self) -> "TlsPeer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        self._ssl.SSL_free(self._session)
        self._ssl.SSL_CTX_free(self._context)

    def _error(self, result: int) -> int:
        return int(self._ssl.SSL_get_error(self._session, result))

    def _made(self) -> bytes:
        """Take the records that OpenSSL has made since the last call."""
        waiting = self._ssl.BIO_ctrl_pending(self._out)
        data = ctypes.create_string_buffer(waiting)
        self._ssl.BIO_read(self._out, data, waiting)
        return data.raw

    def _receive(self) -> bool:
        """Take what the server sends next; False if it has closed the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            return False
        self._ssl.BIO_write(self._in, data, len(data))
        return bool(data)

    def send(self, records: bytes) -> None:
        try:
            self.socket.sendall(records)
        except (BrokenPipeError, ConnectionResetError):
            return

    def data(self, content: bytes) -> bytes:
        assert self._ssl.SSL_write(self._session, content, len(content)) == len(content)
        return self._made()

    def key_updates(self, count: int, *, answered: bool = False) -> bytes:
        for _ in range(count):
            assert self._ssl.SSL_key_update(self._session, int(answered)) == 1
            assert self._ssl.SSL_do_handshake(self._session) == 1
        return self._made()

    def read(self, least: int = 1) -> bytes:
        """Return application data as it arrives; fewer bytes if the server closes."""
        content = b""
        room = ctypes.create_string_buffer(1 << 14)
        while len(content) < least:
            got = self._ssl.SSL_read(self._session, room, len(room))
            if got > 0:
                content += room.raw[:got]
            elif self._error(got) != _WANT_READ or not self._receive():
                break
        return content

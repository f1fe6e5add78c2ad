"""A client of HTTP/2 that leaves every decision to its caller: windows, resets, the order of frames."""

import contextlib
import socket
from collections.abc import Iterable
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from tests.support.missing_tools import need_http2


class Answer:
    """The received answer of one stream."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.body = b""
        self.over = False
        self.error: int | None = None

    @property
    def ended(self) -> bool:
        return self.over or self.error is not None


class Http2Client:
    """One connection.

    Args:
        address: The server's, as HOST:PORT, or a connected socket.
        window: The initial window of each stream.
        reads: Whether received bytes are acknowledged, so that the windows open again.
        timeout: Seconds that it waits for bytes, if it connects itself.

    Attributes:
        answers: The answers, by stream.
        goodbye: The event of GOAWAY, if it came.
        over: Whether the server has closed the connection.
    """

    def __init__(
        self,
        address: Any,
        *,
        window: int = 1 << 20,
        reads: bool = True,
        timeout: float = 60,
    ) -> None:
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket = address
        self._reads = reads
        config = h2.config.H2Configuration(
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        need_http2()
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        if reads:
            self.h2.increment_flow_control_window(1 << 24)
        self.answers: dict[int, Answer] = {}
        self.goodbye: Any = None
        self.over = False
        self._buffer = b""
        self.flush()

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(self.h2.data_to_send())

    def begin(
        self,
        method: str,
        path: str,
        fields: Iterable[tuple[str, str]] = (),
        *,
        end: bool = False,
    ) -> int:
        stream = self.h2.get_next_available_stream_id()
        head = [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
        ]
        self.h2.send_headers(stream, [*head, *fields], end_stream=end)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Send as much of a body as the server takes before it answers; return how much that is."""
        sent = 0
        while sent < len(data) and not self.over and not self.answers[stream].ended:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room <= 0:
                self.read()
                continue
            piece = data[sent : sent + room]
            sent += len(piece)
            self.h2.send_data(stream, piece, end_stream=end and sent == len(data))
            self.flush()
        if end and not data:
            self.h2.send_data(stream, b"", end_stream=True)
            self.flush()
        return sent

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        fields: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        fields = list(fields)
        if body is not None:
            fields.append(("content-length", str(len(body))))
        stream = self.begin(method, path, fields, end=body is None)
        if body is not None:
            self.send(stream, body, end=True)
        return self.wait(stream)

    def reset(self, stream: int, code: int = h2.errors.ErrorCodes.CANCEL) -> None:
        """Want no answer any more."""
        self.h2.reset_stream(stream, code)
        self.flush()

    def wait(self, stream: int) -> Answer:
        answer = self.answers[stream]
        while not answer.ended and not self.over:
            self.read()
        return answer

    def until_over(self) -> None:
        while not self.over:
            self.read()

    def read(self) -> None:
        try:
            got = self.socket.recv(1 << 16)
        except ConnectionError:
            got = b""
        if not got:
            self.over = True
            return
        self._buffer += got
        while len(self._buffer) >= 9:
            length = 9 + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < length:
                break
            frame, self._buffer = self._buffer[:length], self._buffer[length:]
            for event in self.h2.receive_data(frame):
                self._take(event)
        self.flush()

    def _take(self, event: Any) -> None:
        fields: Any = getattr(event, "headers", ())
        answer = self.answers.get(getattr(event, "stream_id", 0) or 0, Answer())
        if isinstance(event, h2.events.ResponseReceived):
            answer.fields = dict(fields)
            answer.status = int(answer.fields.pop(":status"))
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            if self._reads and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = dict(fields)
        elif isinstance(event, h2.events.StreamEnded):
            answer.over = True
        elif isinstance(event, h2.events.StreamReset):
            answer.error = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goodbye = event
            # h2 would take nothing more; the server continues with the streams that it knows.
            self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN

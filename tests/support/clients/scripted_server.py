"""An HTTP server that answers as a list says, whatever it is asked."""

import socket
import threading
from typing import Any


class Scripted:
    """Gives each connection the next list of answers, one per request. None closes the connection."""

    def __init__(self, *connections: Any) -> None:
        self._script = [list(answers) for answers in connections]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.ended = threading.Semaphore(0)  # released once per closed connection
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answers in self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with connection, connection.makefile("rb") as reader:
                for one in answers:
                    if not self._read_request(reader) or one is None:
                        break
                    connection.sendall(one)
            self.ended.release()

    def _read_request(self, reader: Any) -> bool:
        lines = []
        while (line := reader.readline()) not in (b"\r\n", b""):
            lines.append(line)
        if not lines:
            return False
        length = [int(line.split(b":")[1]) for line in lines if line.startswith(b"Content-Length")]
        body = reader.read(length[0]) if length else b""
        self.requests.append((b"".join(lines), body))
        return True

    def close(self) -> None:
        """Take no further connections."""
        self._listener.close()

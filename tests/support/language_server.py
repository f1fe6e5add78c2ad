"""A language server of an editor, asked as an editor asks: JSON-RPC over its standard streams."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any


class LanguageServer:
    """A running language server."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )  # fmt: skip
        self._last = 0
        # A server that hangs ends, and the read of its answer with it.
        self._patience = threading.Timer(120, self._process.kill)
        self._patience.start()
        root = folder.as_uri()
        folders = [{"uri": root, "name": "opened"}]
        capabilities: dict[str, Any] = {"textDocument": {"completion": {}, "hover": {}}}
        self.ask("initialize", {"processId": None, "rootUri": root, "workspaceFolders": folders,
                                "capabilities": capabilities})  # fmt: skip
        self._tell("initialized", {})

    def __enter__(self) -> "LanguageServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

    def open(self, path: Path) -> None:
        """Open a Python file as an editor does."""
        text = path.read_text("utf-8")
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
        self._tell("textDocument/didOpen", {"textDocument": document})

    def completions(self, path: Path, after: str) -> set[str]:
        """Return the names that the editor offers after the first occurrence of a text in an opened file."""
        answer = self.ask("textDocument/completion", self._place(path, after))
        found = answer["items"] if isinstance(answer, dict) else answer
        return {one["label"] for one in found}

    def hover(self, path: Path, after: str) -> str:
        """Return what the editor shows for the name that ends the first place with a text."""
        place = self._place(path, after)
        place["position"]["character"] -= 1
        return str(self.ask("textDocument/hover", place)["contents"])

    def _place(self, path: Path, after: str) -> dict[str, Any]:
        before, found, _ = path.read_text("utf-8").partition(after)
        assert found, f"{path} holds no {after!r}"
        lines = (before + found).split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        return {"textDocument": {"uri": path.as_uri()}, "position": position}

    def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        """Send a request and return its result."""
        self._last += 1
        self._send({"id": self._last, "method": method, "params": parameters})
        while True:
            message = self._message()
            if message.get("id") == self._last and "method" not in message:
                assert "error" not in message, message
                return message.get("result")
            if "id" in message and "method" in message:  # the server asks for its settings
                items = message.get("params", {}).get("items", [])
                self._send({"id": message["id"], "result": [None for _ in items] or None})

    def _tell(self, method: str, parameters: dict[str, Any]) -> None:
        self._send({"method": method, "params": parameters})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        text = json.dumps({"jsonrpc": "2.0"} | message).encode()
        self._process.stdin.write(f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
        self._process.stdin.flush()

    def _message(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        size = 0
        while (line := stream.readline().strip()) or not size:
            name, _, value = line.partition(b":")
            assert name, "the language server ended"
            if name.lower() == b"content-length":
                size = int(value)
        message: dict[str, Any] = json.loads(stream.read(size))
        return message

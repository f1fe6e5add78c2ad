"""Runs the code of a page of docs/ from top to bottom, as a reader would who copies every block.

A block with a title is a file. `sh` is run by a shell, line after line, in one folder; a line with
`ksrv serve` starts a server that replaces the last server, in the background. `python` is a program.
`text` is what the block before it has printed, with … for anything. `console` blocks (they install
something) are not run, nor are `yaml` blocks without a title: those are compared with the schema of model.yaml.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from ksrv.server.launch.status_lines import StatusReader
from tests.support.paths import ROOT

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVE = re.compile(r"^ksrv serve\b")


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def blocks_of_any(page: Path) -> list[str]:
    """Return the text of every fenced block of a page, also of blocks without a language."""
    return re.findall(r"^```[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who follows a page in an empty folder."""

    def __init__(self, folder: Path, timeout: float = 200.0) -> None:
        self._folder = folder / "work"
        self._folder.mkdir(exist_ok=True)
        self._timeout = timeout
        self._log = folder / "server.log"
        self._server: subprocess.Popen[bytes] | None = None
        self._addresses = {"HTTP": "127.0.0.1:8080", "gRPC": "127.0.0.1:9000"}
        self._printed = ""
        commands = folder / "bin"
        commands.mkdir()
        for name, words in (("ksrv", "-m ksrv"), ("python", "")):
            program = commands / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            program.chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith("KSRV_")}
        self._environment = own | {
            "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), own["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def follow(self, blocks: list[Block]) -> None:
        """Do what the blocks say, and end the server."""
        try:
            for block in blocks:
                self._do(block)
        finally:
            self._stop()

    def _do(self, block: Block) -> None:
        if block.title:
            path = self._folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            if path.suffix == ".py":
                compile(block.text, block.title, "exec")
        elif block.language == "sh":
            self._printed = ""
            for line in block.text.replace("\\\n", " ").splitlines():
                if _SERVE.match(line):
                    self._serve(line)
                elif line.strip() and not line.startswith("#"):
                    self._printed += self._run(["bash", "-ec", self._placed(line)], line)
        elif block.language == "python":
            self._printed = self._run([sys.executable, "-c", self._placed(block.text)], block.text)
        elif block.language == "text":
            self._compare(block.text)
        elif block.language == "yaml":
            check_model_yaml(block.text)
        else:
            assert block.language in ("console", "json"), f"no rule for {block.language} blocks"

    def _placed(self, text: str) -> str:
        """Replace the default addresses by the addresses that the server chose."""
        if text.startswith("ksrv infer "):
            text += " --url http://127.0.0.1:8080"
        text = text.replace("127.0.0.1:8080", self._addresses["HTTP"])
        return text.replace("127.0.0.1:9000", self._addresses["gRPC"])

    def _run(self, command: list[str], shown: str) -> str:
        url = f"http://{self._addresses['HTTP']}"
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment | {"KSRV_URL": url}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self._timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{shown}\n{done.stdout}\n{self._server_log()}"
        assert '{"error"' not in done.stdout, f"{shown}\n{done.stdout}"
        return done.stdout

    def _server_log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _serve(self, line: str) -> None:
        self._stop()
        anywhere = {"KSRV_HTTP": "127.0.0.1:0", "KSRV_GRPC": "127.0.0.1:0", "KSRV_DRAIN_DELAY": "0"}
        status = StatusReader()
        anywhere["KSRV_STATUS_FD"] = str(status.descriptor)
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                shlex.split(line), cwd=self._folder, env=self._environment | anywhere, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                pass_fds=[status.descriptor],
            )  # fmt: skip
        status.inherited()
        until = time.monotonic() + self._timeout
        while "\nIn a browser: " not in self._server_log():
            assert self._server.poll() is None, f"{line}\n{self._server_log()}"
            assert time.monotonic() < until, f"{line}\n{self._server_log()}"
            time.sleep(0.05)
        status.update()
        status.close()
        self._addresses = {"HTTP": status.http, "gRPC": status.grpc}
        assert "ready: True" in self._server_log(), self._server_log()

    def _compare(self, text: str) -> None:
        printed = self._printed + self._server_log().replace(
            self._addresses["HTTP"], "127.0.0.1:8080"
        )
        for line in text.splitlines():
            pattern = r".*".join(re.escape(part.strip()) for part in line.split("…"))
            assert re.search(pattern, printed, re.DOTALL), f"{line!r} is not in\n{printed}"

    def _stop(self) -> None:
        if self._server is None:
            return
        self._server.send_signal(signal.SIGTERM)
        try:
            status = self._server.wait(60)
        finally:
            if self._server.poll() is None:
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait()
        self._server = None
        assert status == 0, self._server_log()


def check_model_yaml(text: str) -> None:
    """Hold the keys of a piece of a model.yaml against its schema."""
    from ksrv.repository.json_schema import json_schema

    known = set(json_schema()["$defs"]["ModelKeys"]["properties"])
    unknown = set(yaml.safe_load(text)) - known
    assert not unknown, f"no keys of model.yaml: {unknown}"

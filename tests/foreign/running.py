"""Runs the cases of one repository, one after the other, each in a separate process."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from ksrv.testing.server import Server, ServerFailed
from tests.foreign.cases import Case, Outcome, Places, Repository, Serving

ROOT = Path(__file__).parent
SHOWN = 600
"""Characters of a failed program's output that the report has."""


def run(
    repository: Repository, places: Places, *, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[Outcome]:
    """Run a repository's cases and yield what became of each."""
    servers = Servers(places)
    try:
        for number, case in enumerate(repository.cases):
            if wanted(case.name):
                yield from outcomes(case, places, servers, places.work / f"case-{number}")
    finally:
        servers.close()


class Servers:
    """The server that is up: the next case may ask the same, or another takes its place."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._serving: Serving | None = None
        self._server: Server | None = None
        self._failures: dict[str, str] = {}
        self._metrics: ThreadingHTTPServer | None = None

    def folder(self, serving: Serving) -> Path:
        return self._places.work / serving.name

    def of(self, serving: Serving) -> Server:
        """Return the server, started if it is not up.

        Raises:
            ServerFailed: It did not start.
        """
        if self._server is not None and self._serving is serving:
            if self._server.process.poll() is None:
                return self._server
            raise ServerFailed(f"the server died:\n{self._server.log[-2000:]}")
        self.close()
        if serving.name in self._failures:
            raise ServerFailed(self._failures[serving.name])
        folder = self.folder(serving)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        http, grpc = serving.ports
        values = {"checkout": self._places.checkout, "here": folder, "root": ROOT}
        settings = {"http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}", **serving.settings}
        settings = {
            name: value.format_map(values) if isinstance(value, str) else value
            for name, value in settings.items()
        }
        try:
            models = serving.models(self._places, folder)
        except subprocess.CalledProcessError as error:
            told = (error.stderr or b"").decode(errors="replace")
            self._failures[serving.name] = f"the models cannot be made: {error}\n{told}"
            raise ServerFailed(self._failures[serving.name]) from error
        server = Server(
            models,
            start_timeout=serving.start_timeout,
            environment={
                name: value.format_map(values) for name, value in serving.environment.items()
            },
            **settings,
        )
        try:
            server.start()
        except ServerFailed as error:
            self._failures[serving.name] = str(error)
            raise
        self._serving, self._server = serving, server
        if serving.metrics_port:
            self._metrics = forward(serving.metrics_port, server.url)
        return server

    def close(self) -> None:
        server, self._server, self._serving = self._server, None, None
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.shutdown()
            metrics.server_close()
        if server is not None:
            log = server.log
            if server.terminate() != 0:
                sys.stderr.write(f"a server did not end with status 0:\n{log[-2000:]}\n")


def forward(port: int, url: str) -> ThreadingHTTPServer:
    """Answer GET on a port with what a server answers."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urlopen(url + self.path, timeout=60) as answer:
                body = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep the report free of a line for each request."""

    made = ThreadingHTTPServer(("127.0.0.1", port), Forward)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made


def outcomes(case: Case, places: Places, servers: Servers, work: Path) -> Iterator[Outcome]:
    """Run one case, and yield one outcome, or one for each of its tests, each with the case's models."""
    for outcome in _outcomes(case, places, servers, work):
        yield replace(outcome, models=case.models)


def _outcomes(case: Case, places: Places, servers: Servers, work: Path) -> Iterator[Outcome]:
    """Run one case, and yield one outcome, or one for each of its tests."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if case.fresh:
        servers.close()
    try:
        server = servers.of(case.serving) if case.serving else None
    except ServerFailed as error:
        yield Outcome(case.name, False, case.changed, case.fails, tail(str(error)))
        return
    try:
        status, output = run_program(case, places, servers, server, work)
        report = work / "tests.xml"
        if case.tests and report.exists():
            yield from test_outcomes(case, report)
        else:
            works = status == 0 and re.search(case.prints, output) is not None
            found = "" if works else tail(f"{output}\n(status {status})")
            yield Outcome(case.name, works, case.changed, case.fails, found)
    finally:
        if case.fresh:
            servers.close()


def run_program(
    case: Case, places: Places, servers: Servers, server: Server | None, work: Path
) -> tuple[int, str]:
    """Run a case's program and return its status and output."""
    for name in case.copies:
        source, target = places.checkout / name, work / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    root = work / "copy" if case.copies else places.checkout
    for name, old, new in case.edits:
        text = (root / name).read_text()
        if old not in text:
            return 1, f"{name} has no {old!r} to replace"
        (root / name).write_text(text.replace(old, new))
    values = {
        "python": sys.executable,
        "checkout": root,
        "work": work,
        "checkouts": places.checkouts,
    }
    values["root"] = ROOT
    if server is not None and case.serving is not None:
        values["here"] = servers.folder(case.serving)
        values["log"] = Path(f"/proc/{server.process.pid}/fd/2")
        for name, address in (("http", server.http), ("grpc", server.grpc)):
            host, _, port = address.rpartition(":")
            values |= {name: address, f"{name}_host": host, f"{name}_port": port}
    command = [part.format_map(values) for part in case.command]
    if case.tests:
        command += ["-p", "no:cacheprovider", "-q", f"--junitxml={work / 'tests.xml'}"]
    environment = os.environ | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "*",
        **{name: value.format_map(values) for name, value in case.environment.items()},
    }
    if case.serving is not None and "control_token_file" in case.serving.settings:
        paths = (str(ROOT / "stand_ins/control_token"), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = ":".join(filter(None, paths))
    folder = root / case.folder if case.folder else work
    if case.log:
        (folder / case.log).symlink_to(values["log"])
    # A script that waits for ever has threads and children, which go with its session.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(case.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = -signal.SIGKILL
        output.seek(0)
        return status, output.read().decode(errors="replace")


def test_outcomes(case: Case, report: Path) -> Iterator[Outcome]:
    """Yield what became of each test of a report of pytest's."""
    for test in ET.parse(report).getroot().iter("testcase"):
        name = f"{test.get('classname', '').rpartition('.')[2]}.{test.get('name')}".lstrip(".")
        if test.find("skipped") is not None:
            continue
        failure = test.find("failure")
        if failure is None:
            failure = test.find("error")
        found = "" if failure is None else tail(failure.get("message") or failure.text or "")
        known = reason(name, case)
        yield Outcome(f"{case.name} {name}", failure is None, case.changed, known, found)


def reason(name: str, case: Case) -> str:
    """Return why a test of a case is known to fail; empty if it is not."""
    for pattern, why in case.failing.items():
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return why
    return ""


def tail(text: str) -> str:
    """Return the end of a text, which says what went wrong."""
    text = text.strip()
    return text if len(text) <= SHOWN else "… " + text[-SHOWN:]

"""The gunicorn worker: the native HTTP server, and the threads that call the app.

gunicorn manages processes, signals and settings. The HTTP server owns the listeners and the connections. It answers
fast-path inference, health and metadata itself, and receives every other request as an app message. A thread takes an
app message from the server, calls the Falcon app and gives the answer back to the server. Handlers can occupy these
threads, so separate threads answer metadata and metrics. Only the main thread changes the state of `KsrvWorker`.
"""

import os
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from gunicorn.config import Config
from gunicorn.workers.base import Worker

from ksrv._native.http.proxy_header import ProxyRules
from ksrv._native.http.request_head import HeadRules
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.server.server import HttpServer
from ksrv._native.tls.tls_context import TlsContext, openssl_version
from ksrv.handlers.devices.lost import lost_devices
from ksrv.observe.traffic import Traffic, counted_traffic, watch_connections
from ksrv.server.http.access_log import access_log_of
from ksrv.server.launch.tls import Certificates
from ksrv.server.log_stream import lost_lines
from ksrv.server.rest.app_messages import AppMessages, start_threads
from ksrv.server.rest.fast_path import (
    FastPath,
    endpoint_for,
    prepared_answers,
    render_error,
    render_unready,
)
from ksrv.server.rest.metadata import describe, is_ready
from ksrv.server.settings import ServerSettings, SettingsError

SWITCH_SECONDS = 0.002
"""Python's switch interval: how long a handler that computes in Python keeps the GIL while a request of another model
waits for it. CPython's 5 ms are most of such a request's latency; below 2 ms, changes of thread cost throughput."""

TICK_SECONDS = 0.25
"""Seconds between two heartbeats of the main thread."""

# gunicorn's own maxima for its limits on heads, which apply if a setting is 0 or larger than the maximum.
MOST_REQUEST_LINE = 8190
MOST_FIELDS = 32768
MOST_FIELD_BYTES = 8190
METADATA_THREADS = 32
"""Threads for metadata and metrics: slow inference never delays them."""


def head_rules(cfg: Config, settings: ServerSettings, *, own_hosts: bool, mount: str) -> HeadRules:
    """Return the rules for heads: ksrv's limits, and gunicorn's limits on the request line and the fields.

    Args:
        own_hosts: Whether the app refuses heads whose Host is not this machine.
        mount: The prefix of all paths, or "".
    """
    line, fields = cfg.limit_request_line, cfg.limit_request_fields
    limits = settings.limits
    return HeadRules(
        body=limits.body,
        json=limits.json,
        chunks=limits.chunks,
        head=min(limits.head, 16384),  # the app gets longer heads
        longest_head=limits.head,
        fields=fields if 0 < fields < MOST_FIELDS else MOST_FIELDS,
        request_line=line if 0 < line < MOST_REQUEST_LINE else MOST_REQUEST_LINE,
        field_size=max(cfg.limit_request_field_size, 0) or MOST_FIELD_BYTES,
        compression=settings.compress_responses,
        origins=bool(settings.allowed_origins),
        own_hosts=own_hosts,
        mount=mount,
    )


def tls_library(cfg: Config) -> str:
    """Return a text about the library that encrypts HTTP."""
    if not issubclass(cfg.worker_class, KsrvWorker):
        return f"{ssl.OPENSSL_VERSION}, by worker_class {cfg.worker_class_str}"
    return f"{openssl_version()}, in the native HTTP server"


class KsrvWorker(Worker):  # type: ignore[misc]
    """A worker process of gunicorn, whose connections the native HTTP server owns."""

    alive: bool
    http_server: HttpServer | None = None
    _wake: threading.Event
    _routes: Sequence[tuple[str, str, int, bool]] = ()
    _routes_state = 0
    _publishing: threading.Lock

    def init_process(self) -> None:
        """Prepare the process, and run."""
        self._wake = threading.Event()
        sys.setswitchinterval(SWITCH_SECONDS)
        super().init_process()

    def run(self) -> None:
        """Serve until the worker is asked to stop; then finish the accepted requests."""
        if getattr(self.wsgi, "engine", None) is None:
            raise SettingsError(
                "the worker class of ksrv serves ksrv's app only; choose another worker class for this app"
            )
        self._open_http_server()
        assert self.http_server is not None
        self.http_server.accept(True)
        while self.alive:
            self._beat()
            self._wake.wait(TICK_SECONDS)
            if self.ppid != os.getppid():
                self.log.info("Parent changed, shutting down: %s", self)
                break
            self._count_requests()
            self._log_refusals()
            self._leave_lost_device()
        self._leave()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End the main loop. The thread `ksrv-leave`, which waits for signals, calls this."""
        self.alive = False
        self._wake.set()

    def handle_quit(self, sig: int, frame: Any) -> None:
        """Leave as on SIGTERM. gunicorn's method would end the process within a signal handler."""
        self.handle_exit(sig, frame)

    # ---- the HTTP server -------------------------------------------------------------------------------

    def _open_http_server(self) -> None:
        """Make the HTTP server on gunicorn's listeners, and connect it with the service."""
        service: Any = self.wsgi
        settings = service.settings
        limits = settings.limits
        logs = bool(getattr(self.log, "access_log_enabled", False))
        self._messages = AppMessages(
            service,
            self.cfg,
            [listener.getsockname() for listener in self.sockets],  # fails once they are closed
            limits=limits,
            mount=self._mount(),
        )
        self._limits = limits
        self._fast_path = FastPath(service.parts)
        self._loop = service.io_threads.loop
        self.http_server = http_server = HttpServer(
            self._loop,
            head_rules(
                self.cfg, settings, own_hosts=service.parts.access.own_hosts, mount=self._mount()
            ),
            ConnectionLimits(
                settings, max_connections=self.cfg.worker_connections, keepalive=self.cfg.keepalive
            ),
            self._fast_path,
            prepared_answers(
                limits, service.parts.extensions, to_pages=bool(settings.allowed_origins)
            ),
            check=self._fast_path.admits if service.parts.access.needs_token else None,
            shared=self.cfg.workers > 1,
            tls=self._tls_context(),
            log=logs,
            proxy=ProxyRules(self.cfg.proxy_protocol, self.cfg.proxy_allow_ips),
            plain=[
                (path, item.rows, item.answer) for path, item in service.parts.plain_routes.items()
            ],
        )
        service.engine.on_table_change = http_server.note_model_change
        for listener in self.sockets:
            listener.setblocking(False)
        http_server.listen([listener.fileno() for listener in self.sockets])
        watch_connections(self._traffic)
        self._publishing = threading.Lock()
        service.publish_health = self._publish
        service.last_connected = lambda: http_server.last_connected
        self._publish()
        self._start_threads(http_server, logs=logs)

    def _start_threads(self, http_server: HttpServer, *, logs: bool) -> None:
        """Start the threads that answer app messages, and the thread of the access log."""
        self._threads = [
            thread
            for name, questions, count in (
                ("question", True, METADATA_THREADS),
                ("request", False, self.cfg.threads),
            )
            for thread in start_threads(
                f"ksrv-{name}",
                count,
                partial(http_server.next_app_message, questions=questions),
                self._messages.serve,
            )
        ]
        self._access_log = access_log_of(http_server, self.log) if logs else None
        if self._access_log is not None:
            self._access_log.start()

    def _tls_context(self) -> TlsContext | None:
        """Return the TLS settings of connections, from the files as the master has read them; None without TLS."""
        if not self.cfg.is_ssl:
            return None
        read = getattr(getattr(self.wsgi, "files", None), "certificates", None)
        certificates: Certificates = read or Certificates(self.cfg)
        return certificates.native_context("http/1.1")

    def _mount(self) -> str:
        """Return the prefix of all paths. `Master` puts the setting `mount_prefix` into WSGI's variable."""
        return os.environ.get("SCRIPT_NAME", "")

    def _log_refusals(self) -> None:
        """Log clients whose connections were closed because they spoke another protocol, one line for each client."""
        assert self.http_server is not None
        refused = (
            (protocol, (peer if isinstance(peer, str) else peer[0]) or "a unix socket", cause)
            for peer, protocol, cause in self.http_server.refusals()
        )
        for line in dict.fromkeys(refused):  # without duplicates, in order
            self.log.warning("%s: a connection from %s is closed: %s", *line)

    def _publish(self) -> None:
        """Give the HTTP server the answers that it sends without Python: health, metadata, full queues."""
        assert self.http_server is not None
        with self._publishing:  # threads that load models call this, too
            why = self.wsgi.engine.why_not_ready(names=not self.wsgi.parts.access.needs_token)
            self._publish_routes()  # first, so that a ready server knows its models
            self.http_server.set_health(ready=not why, unready=render_unready(why) if why else None)

    def _publish_routes(self) -> None:
        engine: Any = self.wsgi.engine
        assert self.http_server is not None
        # Read the counter first: if a model changes while the routes are gathered, the server sees that they are
        # outdated.
        state = self.http_server.model_changes
        # Each with the name and version in a path, and the model that they reach.
        reached = engine.routable_models()
        known = [
            (name, version, id(model), is_ready(engine, name, version))
            for name, version, model in reached
        ]
        if known == self._routes and state == self._routes_state:
            self.http_server.forget_endpoints()  # of earlier routes, once no request uses them
            return
        endpoints = {
            id(model): endpoint_for(model, self._fast_path, self._limits) for _, _, model in reached
        }
        self.http_server.set_routes(
            [
                (
                    name,
                    version,
                    model.queue,
                    render_error(model.queue_full()),
                    endpoints[id(model)],
                    *describe(engine, name, model, self._limits, ready=ready),
                    self._fast_path.plain_paths(model.spec),
                )
                for (name, version, model), (*_, ready) in zip(reached, known, strict=True)
            ],
            state,
        )
        self.wsgi.set_fast_routes(
            [
                (name, version, endpoint)
                for name, version, model in reached
                if (endpoint := endpoints[id(model)]) is not None
            ]
        )
        self._routes, self._routes_state = known, state

    def _beat(self) -> None:
        """Publish the state, and send the master a heartbeat unless an I/O thread is stuck."""
        assert self.http_server is not None
        self._publish()
        if not self.cfg.timeout or self._loop.stuck() < self.cfg.timeout:
            self.notify()

    def _count_requests(self) -> None:
        """Leave after gunicorn's `max_requests`, if it is set."""
        if self.max_requests == sys.maxsize or not self.alive:
            return
        assert self.http_server is not None
        if self.http_server.counters()["answered"] >= self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def _leave_lost_device(self) -> None:
        """Leave if a GPU has failed, so that the master starts another worker. Accepted requests are answered."""
        if self.alive and (lost := lost_devices()):
            self.log.critical("%s works no more here: restarting the worker.", ", ".join(lost))
            self.alive = False

    def _traffic(self) -> Traffic:
        """Return the counts of the HTTP server in the form that all front ends share."""
        assert self.http_server is not None
        traffic = counted_traffic("http", self.http_server.counters(), self.http_server.errors())
        traffic.lost_lines += lost_lines()
        traffic.open = self.http_server.open_connections
        return traffic

    # ---- the end --------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Stop accepting, answer the accepted requests within `graceful_timeout`, and stop the server."""
        http_server = self.http_server
        assert http_server is not None
        http_server.accept(False)
        for listener in self.sockets:
            listener.close()
        self._publish()  # health: a replaced worker stays ready, a worker of a server that stops does not
        http_server.drain()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while http_server.open_connections > 0 and time.monotonic() < deadline:
            self._beat()
            time.sleep(0.05)
        if left := http_server.open_connections:
            self.log.warning("%d connections were still open after graceful_timeout", left)
        http_server.stop()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:  # a thread whose handler hangs does not end
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self._access_log is not None:
            self._access_log.close()

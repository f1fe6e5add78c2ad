"""The gunicorn worker: the native HTTP server, and the threads that call the app.

gunicorn keeps processes, signals, settings and its parser. The HTTP server owns the listeners and the
connections, serves fast-path inference, health and descriptions, and receives every other message whole; a
thread takes such a message from it, calls the Falcon app and leaves the answer to it. A handler can occupy
such a thread, so metadata and metrics are answered by a few threads of their own. Only the main thread
touches the worker's state.

Where the HTTP server may not stand in front (TLS without OpenSSL 3, the PROXY protocol, HTTP/2 in
cleartext, request hooks of the user's, another app than ksrv's), or with a release of gunicorn that is
not known (`ksrv.server.threaded.native_choice`), the worker is a plain threaded worker, whose connections
`ksrv.server.threaded.threaded_server` accepts.
"""

import selectors
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from gunicorn.config import Config
from gunicorn.http import message
from gunicorn.sock import ssl_context
from gunicorn.workers import gthread

from ksrv._native.http.request_head import HeadRules
from ksrv._native.server.server import HttpServer
from ksrv._native.tls.tls_context import TlsContext, openssl_version
from ksrv.handlers.devices.lost import lost_devices
from ksrv.observe.traffic import Traffic, watch_connections
from ksrv.protocol.metadata import working_extensions
from ksrv.server.http.access_log import access_log_of
from ksrv.server.http.head_rules import check_head
from ksrv.server.rest.app_messages import AppMessages, AppThreads
from ksrv.server.rest.fast_path import (
    FastPath,
    endpoint_for,
    prepared_answers,
    render_error,
    render_unready,
)
from ksrv.server.rest.metadata import describe, is_ready
from ksrv.server.settings import SettingsError
from ksrv.server.threaded.native_choice import (
    missing_internals,
    speaks_otherwise,
    why_not_native,
    why_settings_not_native,
)
from ksrv.server.threaded.threaded_server import ThreadedFront
from ksrv.server.threaded.timed_socket import TransferTimeouts
from ksrv.server.tls import Certificates

TICK_SECONDS = 0.25
MOST_FIELDS = 64
QUESTION_THREADS = 4
"""Beside gunicorn's number: they answer metadata, metrics and the like whatever the others wait for."""


def head_rules(
    cfg: Config,
    *,
    body: int,
    json: int | None = None,
    head: int,
    chunks: int = 65536,
    compression: bool = False,
    origins: bool = False,
) -> HeadRules:
    """Return which heads are plain, never above what gunicorn's parser would take.

    Args:
        json: The limit on JSON, if it has one of its own.
        chunks: The limit on the chunks of a body.
        compression: Whether answers may be compressed.
        origins: Whether web pages of other origins may read answers.
    """
    line = cfg.limit_request_line
    if line < 0 or line >= message.MAX_REQUEST_LINE or line == 0:
        line = message.MAX_REQUEST_LINE
    fields = cfg.limit_request_fields
    if not 0 < fields <= message.MAX_HEADERS:
        fields = message.MAX_HEADERS
    size = cfg.limit_request_field_size
    if size <= 0:
        size = message.DEFAULT_MAX_HEADERFIELD_SIZE
    return HeadRules(
        body=body,
        json=json,
        chunks=chunks,
        head=min(head, 16384),
        longest_head=head,
        fields=min(fields, MOST_FIELDS),
        request_line=line,
        field_size=size,
        compression=compression,
        origins=origins,
        scheme_names=tuple(cfg.secure_scheme_headers),
    )


def transfer_timeouts(settings: Any) -> TransferTimeouts:
    return TransferTimeouts(
        settings.head_timeout,
        settings.transfer_grace,
        settings.min_transfer_rate,
        settings.transfer_timeout,
    )


def tls_library(cfg: Config) -> str:
    """Say which library encrypts HTTP, and where."""
    if not issubclass(cfg.worker_class, KsrvWorker):
        return f"{ssl.OPENSSL_VERSION}, by worker_class {cfg.worker_class_str}"
    reason = why_settings_not_native(cfg)
    if reason is None:
        return f"{openssl_version()}, in the native HTTP server"
    return f"{ssl.OPENSSL_VERSION}, in Python on threads: {reason}"


class KsrvWorker(gthread.ThreadWorker):  # type: ignore[misc]
    """gunicorn's threaded worker with the HTTP server in front of it."""

    alive: bool
    http_server: HttpServer | None = None
    _tls: TlsContext | None = None
    _http2: Any = None  # the server for connections that speak HTTP/2
    _routes: Sequence[tuple[str, str, int, bool]] = ()
    _routes_state = 0
    _publishing: threading.Lock

    def run(self) -> None:
        """Serve until the worker is told to stop; then finish what was accepted."""
        reason = why_not_native(self.cfg, self.wsgi)
        if reason is None:
            try:
                begin_http2 = getattr(self.wsgi, "http2_server", None)
                self._http2 = None if begin_http2 is None else begin_http2()
                self._tls = self._tls_context()
            except SettingsError as error:
                reason = str(error)
        if reason is not None:
            self.log.warning("serving as a plain threaded worker: %s", reason)
            watch_connections(lambda: Traffic(open=self.nr_conns))
            if missing_internals() or speaks_otherwise(self.cfg):
                super().run()
            else:
                self._front().run()
            return
        self._open_http_server()
        assert self.http_server is not None
        self.set_accept_enabled(True)
        while self.alive:
            self._beat()
            self.wait_for_and_dispatch_events(timeout=TICK_SECONDS)
            if not self.is_parent_alive():
                break
            self._count_requests()
            self._leave_lost_device()
        self._leave()

    def _front(self) -> ThreadedFront:
        settings = getattr(self.wsgi, "settings", None)
        timeouts, head = TransferTimeouts(), 1 << 16
        if settings is not None:
            timeouts = transfer_timeouts(settings)
            head = settings.limits.head
        context = ssl_context(self.cfg) if self.cfg.is_ssl else None
        return ThreadedFront(self, timeouts, head, context)

    # ---- the HTTP server -------------------------------------------------------------------------------

    def _open_http_server(self) -> None:
        service: Any = self.wsgi
        settings = service.settings
        limits = settings.limits
        logs = bool(getattr(self.log, "access_log_enabled", False))
        compression = bool(settings.compress_responses)
        self._messages = AppMessages(
            service,
            self.cfg,
            [listener.getsockname() for listener in self.sockets],  # before they are closed
            body_limit=limits.body,
            head_limit=limits.head,
        )
        self._limits = limits
        self._fast_path = FastPath(
            service.engine,
            limits,
            service.access,
            nan_literals=settings.nan_literals,
            shared_memory=service.shared_memory,
        )
        self._loop = service.io_threads.loop
        self.http_server = http_server = HttpServer(
            self._loop,
            head_rules(
                self.cfg,
                body=limits.body,
                chunks=limits.chunks,
                json=limits.json,
                head=limits.head,
                compression=compression,
                origins=bool(settings.allowed_origins),
            ),
            self._fast_path,
            prepared_answers(
                limits,
                working_extensions(shared_memory=settings.allow_shared_memory),
                to_pages=bool(settings.allowed_origins),
            ),
            connections=self.worker_connections,
            head=settings.head_timeout,
            grace=settings.transfer_grace,
            rate=settings.min_transfer_rate,
            idle=self.cfg.keepalive,
            transfer=settings.transfer_timeout,
            check=self._fast_path.admits if service.access.needs_token else None,
            shared=self.cfg.workers > 1,
            tls=self._tls,
            log=logs,
        )
        service.engine.on_table_change = http_server.note_model_change
        for listener in self.sockets:
            listener.setblocking(False)
        if self._http2 is not None:
            self._http2.serve_with(http_server)
        http_server.listen([listener.fileno() for listener in self.sockets])
        watch_connections(self._traffic)
        self._publishing = threading.Lock()
        service.publish_health = self._publish
        self._publish()
        self._threads = [
            AppThreads(
                f"ksrv-{name}",
                most,
                partial(http_server.next_app_message, questions=questions),
                self._messages.serve,
            )
            for name, questions, most in (
                ("question", True, QUESTION_THREADS),
                ("request", False, self.cfg.threads),
            )
        ]
        for thread in self._threads:
            thread.start()
        self._access_log = access_log_of(http_server, self.log) if logs else None
        if self._access_log is not None:
            self._access_log.start()
        self.poller.register(
            self.method_queue.fileno(), selectors.EVENT_READ, self.method_queue.run_callbacks
        )

    def _tls_context(self) -> TlsContext | None:
        """Return what connections are encrypted with: the files as the master has read them."""
        if not self.cfg.is_ssl:
            return None
        read = getattr(getattr(self.wsgi, "files", None), "certificates", None)
        certificates: Certificates = read or Certificates(self.cfg)
        protocols = ("http/1.1",) if self._http2 is None else ("h2", "http/1.1")
        return certificates.native_context(*protocols)

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begin or stop accepting; with an HTTP server, the HTTP server does."""
        if self.http_server is None:
            super().set_accept_enabled(enabled)
            return
        self.http_server.accept(enabled)
        self._accepting = enabled

    def _publish(self) -> None:
        """Tell the HTTP server what it answers without Python: health, and full queues."""
        assert self.http_server is not None
        with self._publishing:  # the thread that has loaded the models does it too
            why = self.wsgi.engine.why_not_ready(names=not self.wsgi.access.needs_token)
            self._publish_routes()  # before it says that it is ready
            self.http_server.set_health(
                live=True, ready=not why, unready=render_unready(why) if why else None
            )

    def _publish_routes(self) -> None:
        engine: Any = self.wsgi.engine
        assert self.http_server is not None
        state = self.http_server.model_changes  # before the look at the models
        reached = engine.routable_models()
        known = [
            (name, version, id(model), is_ready(engine, name, version))
            for name, version, model in reached
        ]
        if known == self._routes and state == self._routes_state:
            self.http_server.forget_endpoints()
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
        """Tell the master that this worker lives: while every I/O thread makes progress."""
        assert self.http_server is not None
        self._publish()
        if not self.cfg.timeout or self._loop.stuck() < self.cfg.timeout:
            self.notify()

    def _count_requests(self) -> None:
        if self.max_requests == sys.maxsize or not self.alive:
            return
        assert self.http_server is not None
        if self.http_server.counters()["answered"] >= self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def _leave_lost_device(self) -> None:
        """Have the master replace this worker where a device works no more; it answers what it accepted."""
        if self.alive and (lost := lost_devices()):
            self.log.critical("%s works no more here: restarting the worker.", ", ".join(lost))
            self.alive = False

    # ---- messages for the app -----------------------------------------------------------------------

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer one request of the threaded way; a body above the limit is not read."""
        check_head(req)
        if self._announced(req) > self._body_limit():
            req.force_close()
        return super().handle_request(req, conn)

    def _body_limit(self) -> int:
        settings = getattr(self.wsgi, "settings", None)
        return sys.maxsize if settings is None else int(settings.limits.body)

    def _announced(self, req: Any) -> int:
        return next((int(value) for name, value in req.headers if name == "CONTENT-LENGTH"), 0)

    def _traffic(self) -> Traffic:
        """Return what the HTTP server has counted, in the terms of all front ends."""
        assert self.http_server is not None
        counted = self.http_server.counters()
        return Traffic(
            {
                f"http {name}": counted[name]
                for name in ("queue_full", "bytes_in_flight", "too_slow", "tls_refused", "flood")
            },
            {f"http {status}": count for status, count in self.http_server.errors().items()},
            accepted=counted["accepted"],
            recycled=counted["recycled"],
            pauses=counted["accept_paused"],
            lost_records=counted["lost_records"],
            open=self.http_server.open_connections,
        )

    # ---- the end --------------------------------------------------------------------------------

    def handle_quit(self, sig: int, frame: Any) -> None:
        """Leave as on SIGTERM; gunicorn's own takes locks that the interrupted thread may hold."""
        self.handle_exit(sig, frame)

    def _leave(self) -> None:
        http_server = self.http_server
        assert http_server is not None
        self.set_accept_enabled(False)
        for listener in self.sockets:
            listener.close()
        self._publish()  # a replaced worker stays ready, a worker of a server that stops does not
        http_server.drain()
        if self._http2 is not None:  # nothing happens where the service has begun that
            self._http2.begin_stop(self.cfg.graceful_timeout)
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while self._open_connections() > 0 and time.monotonic() < deadline:
            self._beat()
            self.wait_for_and_dispatch_events(timeout=0.05)
        if left := self._open_connections():
            self.log.warning("%d connections were still open after graceful_timeout", left)
        http_server.stop()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:  # an app that hangs keeps its own
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self._access_log is not None:
            self._access_log.close()
        self.tpool.shutdown(wait=False)
        self.poller.close()
        self.method_queue.close()

    def _open_connections(self) -> int:
        """Return how many connections are open, those that speak HTTP/2 included."""
        assert self.http_server is not None
        open_still = self.http_server.open_connections
        return open_still if self._http2 is None else open_still + int(self._http2.open_connections)

"""One worker process from its fork to its exit: models, both front ends, readiness and drain.

`Service` is the WSGI callable that gunicorn gets. The master makes it, but `start` makes everything that must not exist
before the fork (the engine and its threads, grpc) in the worker. The master imports the modules, so that workers start
sooner and share their memory. Models load in a thread, so that the worker answers health and sends heartbeats
meanwhile.

SIGTERM means one of three things. After a reload, the worker is being replaced: it serves until the new workers are
ready. If the number of workers was lowered (SIGTTOU), or SIGUSR2 has started another master, it leaves as soon as other
workers serve. Otherwise the whole server stops: the worker becomes unready, still serves for the drain delay, and
leaves when all accepted requests are answered. SIGINT and SIGQUIT skip the delay. After a second signal, the worker
waits for nothing.
"""

import functools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ksrv._native.memory import buffer_pool
from ksrv.dialects import registry
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import KsrvError
from ksrv.handlers.imports.own_writes import notes_folder
from ksrv.images import opencv
from ksrv.machine.cgroups import usable_cores
from ksrv.observe import tracing
from ksrv.observe.traffic import Traffic, own_traffic
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import RepositoryError
from ksrv.server.addresses import Address
from ksrv.server.app import App, make_app
from ksrv.server.grpc.native_server import NativeGrpcServer
from ksrv.server.launch.status_lines import report_loaded
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import ServerParts, server_parts
from ksrv.server.shared.statistics import ServerStatistics, StatisticsFile
from ksrv.server.shared.worker_table import CAPACITY, State, Stop, Worker, WorkerTable
from ksrv.server.workers.banner import print_models
from ksrv.server.workers.change_log import ChangeLog
from ksrv.server.workers.configured_files import GivenFiles
from ksrv.server.workers.configured_repository import configured_repository
from ksrv.server.workers.io_threads import IoThreads
from ksrv.server.workers.model_control import poll_seconds, unloaded_at_start
from ksrv.server.workers.repository_changes import ChangeReplicator
from ksrv.server.workers.stop_signals import StopSignals

if TYPE_CHECKING:
    from ksrv._native.server.model_endpoint import ModelEndpoint
    from ksrv.server.grpc.grpcio_server import GrpcioServer

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Seconds between two looks at the worker table while a worker waits for others."""

STATISTICS_SECONDS = 1.0
STOP_SEEN_SECONDS = 1.0
"""A worker waits this time after SIGTERM before it leaves to others: if a supervisor sent SIGTERM to every process, the
master notes in this time that the whole server stops."""

IMPATIENT_SECONDS = 1.0
"""The time in which a worker ends after a second signal; less than the master gives it."""


class Service:
    """The engine and the front ends of a worker. The master makes the object; each worker starts its copy.

    Attributes:
        files: The files that the master has read for all workers, before the first fork or at a reload.
        notes: The folder in which all workers note the files that handlers write.
        publish_health: Updates the HTTP server's answers. It is called when models were loaded or changed, before any
            client learns of the change.
        last_connected: Returns when a client of HTTP was last connected, on the clock of `time.monotonic`.
    """

    files: GivenFiles
    _worker: Worker

    def __init__(self, settings: ServerSettings, table: WorkerTable) -> None:
        self.settings = settings
        self._statistics_file = StatisticsFile(CAPACITY)
        self._change_log = ChangeLog(table.read_by_all)
        self.notes = notes_folder(secrets.token_hex(8))
        self.publish_health: Callable[[], object] = lambda: None
        self.last_connected: Callable[[], float] = time.monotonic  # which the HTTP server replaces
        self.grpc_address: Address | None = None
        self.grpc_listener: socket.socket | None = None  # of the native server
        self._table = table
        self._slot = -1
        # Whether this is the very first worker, which prints the table of models.
        self._first = False
        self._parts: ServerParts | None = None
        self._app: App | None = None
        self._grpc: GrpcioServer | NativeGrpcServer | None = None
        self._http_address = ""
        self._url: str | None = None  # the address to print
        self._signals = StopSignals(table)
        self._replicator: ChangeReplicator | None = None
        # When `stop_timeout` is over. Set when the front ends begin to stop.
        self._end: float | None = None
        self._leaving = threading.Event()  # a stop signal came; other workers may not serve yet
        self._ending = threading.Event()  # the front ends have begun to stop
        self._loaded = threading.Event()  # all models were tried

    @property
    def parts(self) -> ServerParts:
        """The parts that the front ends share; they exist once `start` has run."""
        assert self._parts is not None, "the parts exist in a started worker only"
        return self._parts

    @property
    def engine(self) -> Engine:
        """The worker's engine; it exists once `start` has run."""
        return self.parts.engine

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request: the WSGI interface."""
        assert self._app is not None, "gunicorn serves requests in a started worker only"
        return self._app(environ, start_response)

    def wanted_body(self, environ: dict[str, Any]) -> int | None:
        """Return how long a message's body may be; see `App.wanted_body`."""
        assert self._app is not None, "gunicorn serves requests in a started worker only"
        return self._app.wanted_body(environ)

    def enter(self, slot: int, http_address: str, *, shown: bool) -> None:
        """Prepare this copy for one worker, right after the fork.

        Args:
            slot: The slot that the master gave this worker.
            http_address: The address of HTTP: "http://host:port", "https://host:port" or "unix:path".
            shown: Whether the address is printed.
        """
        self._slot = slot
        self._worker = self._table.workers[slot]
        self._worker.pid = os.getpid()
        self._http_address = http_address
        self._url = http_address if shown else None
        # The master lets the first worker accept at once (`WorkerTable.allocate`). Beside the master of an older server
        # it lets no worker accept, and the first worker has slot 0.
        is_first = self._worker.accepting or (self._table.beside_another and slot == 0)
        self._first = self._table.generation == 0 and is_first

    def start(self, worker: Any) -> None:
        """Make the engine and the front ends, and return when this worker may accept.

        Raises:
            SystemExit: The worker was asked to leave before it could serve.
        """
        threading.Thread(
            target=self._leave_on_signal, args=(worker,), name="ksrv-leave", daemon=True
        ).start()
        self._signals.heed()
        self._prepare_process()
        settings = self.settings
        repository = configured_repository(settings, self.files.foreign)
        if settings.trace == "otlp":
            tracing.start()
        workers = self._table.target_count
        engine = Engine(
            repository,
            engine_settings(settings, workers, self.notes),
            server_call=registry.server_call,
        )
        replicator = ChangeReplicator(
            self._change_log,
            self._table,
            self._slot,
            lambda: self.publish_health(),  # which the HTTP server replaces
        )
        repository.configs.update(replicator.configs)
        engine.carry_out = replicator.carry_out
        self._replicator = replicator
        parts = self._parts = server_parts(
            engine,
            settings,
            self.files.access,
            ServerStatistics(engine, self._statistics_file, self._table, self._slot),
            shared_memory=registry.shared_memory(settings, self.files.access),
            extensions=registry.extensions(settings),
            change_setting=replicator.change_setting,
        )
        threading.Thread(
            target=replicator.run, args=(engine,), name="ksrv-replicate", daemon=True
        ).start()
        threading.Thread(target=self._share_statistics, name="ksrv-statistics", daemon=True).start()
        self._app = make_app(parts)
        threading.Thread(target=self._load, name="ksrv-load", daemon=True).start()
        self._wait_to_accept(worker)
        if self.grpc_address is not None:
            self._start_grpc(self.grpc_address)
        # From here on a replaced worker may leave, because both front ends of this worker exist.
        self._worker.accepting = True
        self._table.served = True

    def _prepare_process(self) -> None:
        """Change settings of malloc and OpenCV for the whole process."""
        if self.settings.retain_freed_memory:
            buffer_pool.tune_malloc(kept_bytes=256 << 20, no_mmap=True)
        else:
            buffer_pool.tune_malloc()
        opencv.own_process()

    def _wait_to_accept(self, worker: Any) -> None:
        """Send heartbeats until the worker table says that this worker may accept; exit if it must leave before."""
        accepts = self._worker.accepting  # set by the master if no other worker accepts
        while worker.alive and not (accepts or self._table.may_accept(self._slot)):
            worker.notify()
            time.sleep(POLL_SECONDS)
        if not worker.alive:
            sys.exit(0)  # because gunicorn's `run` would accept clients once more

    def _start_grpc(self, address: Address) -> None:
        certificates = self.files.certificates
        if self.grpc_listener is not None:
            native = self._grpc = NativeGrpcServer(
                self.io_threads.loop, self.parts, registry.grpc_methods
            )
            tls = None if certificates is None else certificates.native_context("h2")
            native.start(self.grpc_listener, tls=tls, http_address=self._http_address)
            return
        from ksrv.server.grpc.grpcio_server import GrpcioServer

        credentials = None if certificates is None else certificates.grpc_credentials()
        server = GrpcioServer(self.parts, registry.grpc_methods)
        self._grpc = server
        server.start(str(address), credentials=credentials)

    @functools.cached_property
    def io_threads(self) -> IoThreads:
        """The I/O threads of this worker, which begin when the first server needs them."""
        return IoThreads(self.settings.io_threads)

    def set_fast_routes(self, routes: "Sequence[tuple[str, str, ModelEndpoint]]") -> None:
        """Give the gRPC server the models that have a fast path.

        Args:
            routes: Name, version and endpoint of each model.
        """
        if isinstance(self._grpc, NativeGrpcServer):
            self._grpc.set_routes(routes)

    def _share_statistics(self) -> None:
        while not self._ending.wait(STATISTICS_SECONDS):
            self.parts.statistics.publish()
            self._note_healed()
            _log_full(own_traffic())

    def _note_healed(self) -> None:
        """Make a FAILED worker READY if its models could be loaded since, so that it may accept connections."""
        failed = self._worker.state == State.FAILED and not self._leaving.is_set()
        if failed and self._loaded.is_set() and self.engine.ready():
            self._worker.state = State.READY
            log.info("the models that could not be loaded are ready now")

    def _models(self) -> tuple[Mapping[str, ModelEntry], Collection[str]]:
        """Return all models of the repository, and the names that are not loaded at the start."""
        replicator, engine = self._replicator, self.engine
        assert replicator is not None, "models are loaded in a started worker only"

        def unloaded(names: Iterable[str]) -> Collection[str]:
            return unloaded_at_start(self.settings, replicator, names)

        def look() -> dict[str, ModelEntry]:
            found = engine.repository.scan()
            return engine.with_files(found, unloaded(found))

        models = replicator.models_to_load(look)
        return models, unloaded(models)

    def _load(self) -> None:
        start = time.monotonic()
        try:
            self.engine.start(wait=True, models=self._models)
            if self._replicator is not None:
                self._replicator.note_loaded(self.engine)
        except RepositoryError as error:
            log.error("the models could not be loaded: %s", error)
        except BaseException:
            log.exception("the models could not be loaded")
        self._loaded.set()
        if self._leaving.is_set():
            return  # the slot's state already says that the worker leaves
        ready = self.engine.ready()
        # Publish first: as soon as the slot is READY, other workers accept, too, and all must answer the same health.
        self.publish_health()
        self._worker.state = State.READY if ready else State.FAILED
        self._table.end_reload()
        log.info("models loaded in %.1f s, ready: %s", time.monotonic() - start, ready)
        if not ready and any(model.ready for model in self.engine.loaded()):
            log.warning(
                "the server is not ready, because %s; the other models serve, and --ready-when any has them make "
                "the server ready",
                self.engine.why_not_ready(names=True),
            )
        if self._first:
            print_models(self.engine, self._url, self.settings)
            if self.settings.status_fd is not None:
                report_loaded(self.settings.status_fd, ready=ready)

    def _leave_on_signal(self, worker: Any) -> None:
        """Wait for a stop signal and leave; end the process at once after a second signal. The thread `ksrv-leave`."""
        # gunicorn repeats SIGTERM while it has too many workers, so a repeated SIGTERM does not count as a second
        # signal.
        self._signals.wait()
        self._leaving.set()
        self._leave(worker)
        while not self._signals.at_once:
            self._signals.wait()
        time.sleep(IMPATIENT_SECONDS)
        log.warning("a second signal to stop: requests that still run are cut off")
        if self._parts is not None:
            self._parts.statistics.publish()
        logging.shutdown()
        os._exit(0)

    def _leave(self, worker: Any) -> None:
        """Serve on as long as SIGTERM asks for (see the module's docstring), then begin the stop of the front ends."""
        generation = self._worker.generation
        replaced = False
        if self._parts is None or not self._worker.accepting:
            log.info("worker leaves before it served")
        elif self._others_serve(generation):
            replaced = True
        else:
            self._worker.state = State.STOPPING
            self.engine.drain()
            if self._loaded.is_set():  # a server that was never ready has no callers to wait for
                self._drain()
        self._ending.set()
        self._end = time.monotonic() + self.settings.stop_timeout
        if self._grpc is not None:
            self._grpc.begin_stop(self.settings.stop_timeout, replaced=replaced)
        # Wakes the main thread (`ksrv/server/worker.py`): the worker stops accepting, answers the accepted requests, and
        # exits.
        type(worker).handle_exit(worker, signal.SIGTERM, None)

    def _drain(self) -> None:
        """Serve on, not ready, for the drain delay, so that load balancers stop sending requests.

        If no client was connected for as long before, no load balancer checks this server, and the delay is left out.
        """
        delay, now = self.settings.drain_delay, time.monotonic()
        if not self._signals.quick and now - self._last_connected() > delay > 0:
            log.info("no client was connected for %.1f s: ending without the drain delay", delay)
            return
        end = now + delay
        if not self._signals.quick:
            log.info("draining for %.1f s", delay)
        while not self._signals.quick and (left := end - time.monotonic()) > 0:
            self._signals.wait(left)

    def _last_connected(self) -> float:
        """Return when a client was last connected to this worker, by HTTP or by gRPC."""
        grpc_server = self._grpc
        if grpc_server is None:
            return self.last_connected()
        return max(self.last_connected(), grpc_server.last_connected)

    def _others_serve(self, generation: int) -> bool:
        """Serve on until other workers serve. Return False if the server stops meanwhile, or no other will serve."""
        # Workers whose models fail, too, may replace a worker whose models have failed.
        by_failed = self._worker.state != State.READY
        self._worker.state = State.RETIRING
        if not (self._table.stopping or self._signals.quick):
            log.info("serving on until the other workers are ready")
        stop_seen = time.monotonic() + STOP_SEEN_SECONDS
        while not (self._table.stopping or self._signals.quick):
            # After a reload a whole newer generation must serve.
            if self._table.generation > generation:
                if self._table.replaced(generation, by_failed=by_failed):
                    return True
            else:
                # None: not yet, but perhaps soon.
                served = self._table.served_by_another(self._slot)
                if served is False:
                    return False
                if served and time.monotonic() >= stop_seen:
                    return True
            self._signals.wait(POLL_SECONDS)
        return self._table.stopping == Stop.TAKEN_OVER and not self._signals.quick

    def stop(self) -> None:
        """Stop gRPC, the I/O threads and the engine; called when the worker exits."""
        timeout = self.settings.stop_timeout
        if self._end is not None:  # the HTTP server has used a part of the timeout
            timeout = max(0.0, self._end - time.monotonic())
        if self._grpc is not None:
            self._grpc.stop(timeout)
        if "io_threads" in self.__dict__:
            self.io_threads.stop()
        if not self._loaded.is_set():
            log.info("leaving while models are being loaded")
        elif self._parts is not None:
            # The closed engine refuses changes. The worker counts as if it had followed every change to come, so that no
            # control call waits for it.
            self._worker.follows = sys.maxsize
            try:
                self.engine.close(timeout)
            except KsrvError as error:
                log.error("the engine did not close cleanly: %s", error.message)
            self._parts.statistics.publish()
        tracing.stop()


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _log_full(traffic: Traffic) -> None:
    """Log a warning, once, if the worker is at its limit of connections or file descriptors."""
    if traffic.recycled or traffic.accept_pauses > traffic.lacked_descriptors:
        _warn_once(
            "the limit of connections is reached: idle connections are closed for new clients, which wait if none is "
            "idle; --max-connections raises the limit (gRPC may use a quarter of the open files, ulimit -n)"
        )
    if traffic.lacked_descriptors:
        _warn_once(
            "no file descriptor is left, and new clients wait; raise the limit of open files (ulimit -n, LimitNOFILE)"
        )


def engine_settings(settings: ServerSettings, workers: int = 1, notes: str = "") -> EngineSettings:
    """Return the engine's part of the settings.

    Args:
        workers: The number of workers in gunicorn's settings.
        notes: The folder in which the workers note the files that handlers write.
    """
    return EngineSettings(
        limits=settings.limits,
        cores=max(1, usable_cores() // settings.workers),
        ready_when=settings.ready_when,
        watch_seconds=poll_seconds(settings),
        model_control=settings.model_control,
        drain_seconds=settings.stop_timeout,
        parallel_loads=settings.parallel_loads,
        debug=settings.debug,
        models_memory=settings.models_memory,
        workers=max(workers, settings.workers),
        notes=notes,
    )

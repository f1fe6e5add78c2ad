"""`Master`: gunicorn's settings, the hooks that gunicorn calls, and the `Service` that workers inherit."""

import gc
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ksrv.dialects import registry
from ksrv.images import jpeg
from ksrv.observe import tracing
from ksrv.server.addresses import (
    Address,
    AddressError,
    check_exposure,
    check_free,
    parse_address,
    unusable,
)
from ksrv.server.credentials import Access, check_client_limits
from ksrv.server.grpc.choice import describe, is_native
from ksrv.server.grpc.port import hand_over, inherited, listen, reserve
from ksrv.server.http.callers import UNIX, TrustedProxies
from ksrv.server.launch import tls
from ksrv.server.launch.gunicorn_checks import (
    check_gunicorn,
    check_mount_prefix,
    check_proxies,
    check_settings,
    check_worker_class,
)
from ksrv.server.launch.status_lines import check_descriptor, report_addresses
from ksrv.server.logs import ACCESS_FORMAT, configure, gunicorn_logger
from ksrv.server.settings import ServerSettings, SettingsError
from ksrv.server.shared.worker_table import State, shared_table
from ksrv.server.worker import KsrvWorker, tls_library
from ksrv.server.workers.arbiter import adopt
from ksrv.server.workers.banner import control_note, print_addresses
from ksrv.server.workers.configured_files import read_files
from ksrv.server.workers.hard_exit import WorkerEnd
from ksrv.server.workers.lifecycle import Service
from ksrv.server.workers.model_control import check_model_control

log = logging.getLogger(__name__)

HTTP_PARSER = "python"
"""For gunicorn's own worker classes: the value "auto" would use a laxer C parser if it is installed."""

MARGIN_SECONDS = 5
"""Seconds that a worker has for its exit after drain_delay and stop_timeout, before the master kills it."""

HOOKS = (
    *("on_starting", "on_reload", "when_ready", "pre_fork", "post_fork", "post_worker_init"),
    *("pre_exec", "nworkers_changed", "child_exit", "worker_exit", "on_exit"),
)
"""The methods of `Master` that gunicorn calls."""

UNIX_SOCKET_UMASK = 0o007
"""Bits that the umask of unix sockets always has, because their callers may load models. gunicorn's default is 0."""


def _process_umask() -> int:
    mask = os.umask(0)  # the umask can only be read by setting it
    os.umask(mask)
    return mask


def _inherits_listeners(server: Any) -> bool:
    """Whether the listeners come from another process, or may be shared with one."""
    given = any(name in os.environ for name in ("LISTEN_FDS", "GUNICORN_FD"))
    return given or bool(server.cfg.reuse_port)


class Master:
    """The state of the master process. The methods that `HOOKS` names are gunicorn's hooks."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.table = shared_table()
        _check_temporary_folder()
        self.service = Service(settings, self.table)
        self._worker_end = WorkerEnd()
        check_mount_prefix(settings.mount_prefix)
        check_proxies(settings.proxy_allow_ips)
        TrustedProxies.of(settings)  # raises if an entry is not an address
        check_worker_class(settings.worker_class)  # before gunicorn imports the class
        check_model_control(settings)
        check_client_limits(settings)
        if settings.status_fd is not None:
            check_descriptor(settings.status_fd)
        if settings.trace == "otlp":
            _check("trace", tracing.check_installed)
        Access(settings)  # raises before anything starts, if a token file cannot be read
        self._http = parse_address(settings.http, "http")
        self._grpc = parse_address(settings.grpc, "grpc")
        # For --http off. gunicorn must listen somewhere: on a socket in a folder that only this user can open.
        self._hidden_folder = None if self._http else tempfile.TemporaryDirectory(prefix="ksrv-")
        self._grpc_socket: socket.socket | None = None

    def options(self) -> dict[str, Any]:
        """Return gunicorn's settings, hooks included."""
        settings, hidden = self.settings, self._hidden_folder
        return {
            "bind": [f"unix:{hidden.name}/off.sock" if hidden else str(self._http)],
            "workers": settings.workers,
            "worker_class": settings.worker_class,
            "threads": settings.threads,
            "worker_connections": settings.max_connections,
            "backlog": settings.backlog,
            "keepalive": math.ceil(settings.keepalive),
            "timeout": settings.worker_timeout,
            "graceful_timeout": self._seconds_to_leave(),
            "http_parser": HTTP_PARSER,
            # gunicorn's own workers read the variable, too
            "raw_env": [f"SCRIPT_NAME={settings.mount_prefix}"] if settings.mount_prefix else [],
            "proxy_protocol": settings.proxy_protocol,
            "proxy_allow_ips": ",".join(settings.proxy_allow_ips),
            "forwarded_allow_ips": ",".join(
                entry for entry in settings.forwarded_allow_ips if entry != UNIX
            ),
            "forwarder_headers": "",  # no header may set SCRIPT_NAME or PATH_INFO
            "control_socket_disable": True,
            "loglevel": settings.log_level,
            "logger_class": gunicorn_logger(settings),
            "accesslog": "-" if settings.access_log else None,
            "access_log_format": ACCESS_FORMAT,
            "limit_request_field_size": min(settings.limits.head, 65536),
            "proc_name": "ksrv",
            **tls.gunicorn_options(settings),
            **self.hooks(),
        }

    def _seconds_to_leave(self) -> int:
        """Return the seconds after which the master kills a leaving worker."""
        settings = self.settings
        return math.ceil(settings.drain_delay + settings.stop_timeout) + MARGIN_SECONDS

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """Return gunicorn's server hooks."""
        return {name: getattr(self, name) for name in HOOKS}

    def on_starting(self, server: Any) -> None:
        """Check gunicorn, addresses and files, and take the gRPC port, before the master listens for HTTP."""
        settings = self.settings
        try:
            check_gunicorn()
            self._check_gunicorn_settings(server)
        except SettingsError as error:
            # gunicorn shows this type of error without a traceback.
            raise RuntimeError(str(error)) from error
        adopt(server, self.table)
        self._enforce(server)
        configure(settings)
        guarded = settings.token_file is not None or tls.needs_certificate(server.cfg)
        addresses = [
            Address(path=bound) if isinstance(bound, str) else Address(*bound[:2])
            for bound in server.cfg.address
        ]
        loopback = all(address.loopback for address in addresses)
        try:
            self._read_files(server)
            for address in addresses:
                check_exposure(address, "http", insecure=settings.insecure, credentials=guarded)
            native = is_native(settings, encrypted=self.service.files.certificates is not None)
            if self._grpc is not None:
                loopback = loopback and self._grpc.loopback
                check_exposure(self._grpc, "grpc", insecure=settings.insecure, credentials=guarded)
                self._take_grpc(self._grpc, server.cfg.umask, native=native)
                server.grpc_listener = self.service.grpc_listener
            elif (held := inherited(listens=native)) is not None:
                held.close()  # gRPC is now off, and the replaced master had it on
            registry.check_settings(settings, loopback=loopback)
            if settings.debug and not loopback:
                raise SettingsError(
                    "setting 'debug' puts lines of the handlers' code into answers, so it is allowed with loopback "
                    "addresses only; give --http and --grpc addresses such as 127.0.0.1:8080"
                )
            _check("jpeg_decoder", lambda: jpeg.choose(settings.jpeg_decoder))
            if not _inherits_listeners(server):
                for address in addresses:
                    check_free(address, "http")
        except (AddressError, SettingsError, OSError) as error:
            raise RuntimeError(str(error)) from error

    def _take_grpc(self, address: Address, umask: int, *, native: bool) -> None:
        """Take the gRPC address, so that port 0 becomes one port for all workers, and a second server fails.

        With the native gRPC server, the workers accept from one listener that they inherit. With grpcio, each worker
        binds the port again (SO_REUSEPORT), and the master's socket only reserves it.
        """
        held = inherited(listens=native)
        try:
            if native:
                made = held or listen(address, self.settings.backlog, umask=umask)
                self.service.grpc_listener = made
                port = 0 if address.path else made.getsockname()[1]
                self.service.grpc_address = replace(address, port=port)
            elif held is not None:
                self._grpc_socket = held
                self.service.grpc_address = replace(address, port=held.getsockname()[1])
            else:
                self.service.grpc_address, self._grpc_socket = reserve(address)
        except OSError as error:
            raise unusable(address, "grpc", error) from error

    def _enforce(self, server: Any) -> None:
        """Set the settings again that gunicorn's command line and configuration file must not change."""
        server.cfg.set("http_parser", HTTP_PARSER)
        server.cfg.set("preload_app", False)
        server.cfg.set("umask", server.cfg.umask | _process_umask() | UNIX_SOCKET_UMASK)
        self.table.target_count = server.cfg.workers

    def _check_gunicorn_settings(self, server: Any) -> None:
        check_worker_class(server.cfg.worker_class_str)
        if issubclass(server.cfg.worker_class, KsrvWorker):
            check_settings(server.cfg)
            check_mount_prefix(os.environ.get("SCRIPT_NAME", ""))

    def _read_files(self, server: Any) -> None:
        files = read_files(self.settings, server.cfg)
        self.service.files = files
        self.table.certificate_expiry = files.certificates.expiry if files.certificates else 0
        for name, foreign in files.foreign.items():
            for line in foreign.lines():
                log.info("%s: %s", getattr(self.settings, name), line)

    def on_reload(self, server: Any) -> None:
        """Check settings and files for a reload, and begin a new generation of workers.

        Raises:
            SettingsError: A file or a setting cannot be used. `Arbiter.reload` then refuses the reload.
        """
        self._enforce(server)
        self._check_gunicorn_settings(server)
        self._read_files(server)
        server.begin_reload()

    def when_ready(self, server: Any) -> None:
        """Print the addresses, with the ports that the system chose for port 0. gunicorn forks the workers next.

        The objects that exist now live as long as the processes. `gc.freeze` keeps the garbage collector from
        visiting them, because it would write to pages that the workers share with the master.
        """
        gc.freeze()
        http = None if self._hidden_folder else [str(listener) for listener in server.LISTENERS]
        sockets_only = all(addr is None or addr.path for addr in (self._http, self._grpc))
        print_addresses(
            http,
            self.service.grpc_address,
            control=control_note(self.settings, sockets_only=sockets_only),
        )
        if self.settings.status_fd is not None:
            grpc = [] if self.service.grpc_address is None else [str(self.service.grpc_address)]
            report_addresses(self.settings.status_fd, http or [], grpc)
        if self.service.grpc_address is not None:
            native = self.service.grpc_listener is not None
            log.info("gRPC is served by %s", describe(native=native))
        if server.cfg.is_ssl:
            log.info("TLS of HTTP is served by %s", tls_library(server.cfg))

    def pre_exec(self, server: Any) -> None:
        """Prepare this process, a child of the master, to become the new master (SIGUSR2).

        Args:
            server: gunicorn's arbiter, which executes the command in its `START_CTX`.
        """
        held = self.service.grpc_listener or self._grpc_socket
        if held is not None:
            listens = self.service.grpc_listener is not None
            hand_over(held, server.cfg.env_orig, listens=listens)
        # gunicorn would run `python -m ksrv` by its file, whose folder has modules with the names of Python's modules.
        server.START_CTX[0] = sys.executable
        server.START_CTX["args"] = [sys.executable, *sys.orig_argv[1:]]

    def nworkers_changed(self, server: Any, new: int, old: int | None) -> None:
        """Note how many workers a generation has."""
        self.table.target_count = new

    def pre_fork(self, server: Any, worker: Any) -> None:
        """Give the next worker its slot."""
        worker.ksrv_slot = self.table.allocate()

    def post_fork(self, server: Any, worker: Any) -> None:
        """Prepare the new process, before gunicorn's worker does anything in it."""
        listener = str(worker.sockets[0])
        reachable = self._hidden_folder is None and listener.startswith("http")
        self.service.enter(worker.ksrv_slot, listener, shown=reachable)
        worker.cfg.set("graceful_timeout", max(1, math.ceil(self.settings.stop_timeout)))
        if self._grpc_socket is not None:
            self._grpc_socket.close()

    def post_worker_init(self, worker: Any) -> None:
        """Start the service. gunicorn calls `run` of the worker, which accepts clients, when this returns."""
        self.service.start(worker)

    def worker_exit(self, server: Any, worker: Any) -> None:
        """Stop the service when the worker exits. Handlers that hang do not keep the process."""
        if worker.alive and not worker.booted:
            self.table.workers[worker.ksrv_slot].state = State.NEVER_SERVED
        self.service.stop()
        if os.getpid() == worker.pid:  # the master calls this, too, for a worker that has vanished
            self._worker_end.prepare()

    def on_exit(self, server: Any) -> None:
        """Delete the folder of notes that the workers shared."""
        shutil.rmtree(self.service.notes, ignore_errors=True)

    def child_exit(self, server: Any, worker: Any) -> None:
        """Free the slot of a worker that has ended for any reason."""
        asked = getattr(worker, "ksrv_asked_to_leave", False)
        server.release_slot(worker.ksrv_slot, asked_to_leave=asked)


def _check_temporary_folder() -> None:
    """Refuse to start without a folder for the heartbeats of workers, unpacked archives and the like.

    Raises:
        SettingsError: No such folder was found.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SettingsError(
            f"no folder for temporary files was found: {error.strerror}; give the server a /tmp that it can write "
            f"to and that has room, or name another folder with the variable TMPDIR"
        ) from error


def _check(setting: str, check: Callable[[], object]) -> None:
    """Run the check of a setting, and raise its failure with the setting's name.

    Raises:
        SettingsError: The check failed.
    """
    try:
        check()
    except (ValueError, tracing.TracingError) as error:
        raise SettingsError(f"setting '{setting}': {error}") from error

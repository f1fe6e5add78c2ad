"""Every setting of the server in one typed place, with its default and its meaning."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ksrv.engine.settings import PARALLEL_LOADS
from ksrv.limits import Limits

DEFAULT_WORKER_CLASS = "ksrv.server.worker:KsrvWorker"
"""The gunicorn worker of `ksrv serve`; named only here."""

SECTIONS = {
    "model_name": "Models",
    "http": "Addresses",
    "token_file": "Access",
    "workers": "Processes and threads",
    "max_connections": "Connections",
    "decompress_requests": "Requests and answers",
    "torchserve_api": "TorchServe",
    "log_format": "Logs, metrics and page",
    "limits": "Limits",
}
"""The sections of the help of `ksrv serve`, each by the first of its settings."""

RELOAD_SECONDS = 0.5
"""How often `reload` looks for changed files."""


class SettingsError(ValueError):
    """A setting is unknown or has a value that cannot be; the text names it and its source."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server. The descriptions are the help of `ksrv serve`.

    Attributes:
        models: Model repositories, model folders, model files or handlers (FILE.py:NAME) to serve.
        model_name: Serve the only model at PATHS under this name.
        model_settings: Settings for the only FILE.py at PATHS, as JSON; they override those in the
            file. @FILE reads the JSON from a file.
        reload: For development: load a model again when its files change.
        debug: For development: show the end of a handler's traceback in answers, and allow profiles
            of single requests. Works on loopback only.
        poll_interval: Seconds after which ksrv looks for changed models again; 0: never.
        model_control: Who may load and unload models: auto (calls and --poll-interval), none, poll
            (only --poll-interval, 15 s by default), explicit (only calls, beginning with
            --load-model), or lazy (a model is loaded when a request names it).
        models_memory: With --model-control lazy: memory for the models of a worker, such as 8G.
            Beyond it, the models that were used least recently are unloaded. 0: no limit.
        load_model: With --model-control explicit: models to load at the start; * for all.
        parallel_loads: Models that a worker loads at the same time; fewer need less memory. Imports
            and initialize run one after the other in any case.
        ready_when: Whether the server is ready when all models are, or when one is.
        http: HTTP address HOST:PORT, unix:PATH or off; port 0 picks one.
        grpc: gRPC address HOST:PORT, unix:PATH or off; port 0 picks one.
        grpc_server: Implementation of gRPC: native (needs libnghttp2), grpcio, or auto for native
            if possible.
        mount_prefix: Prefix of all HTTP paths, such as /models, if a proxy keeps it.
        proxy_protocol: Version of the PROXY protocol by which a load balancer names its HTTP
            clients; auto for both.
        proxy_allow_ips: Addresses or networks of the load balancers that send the PROXY header; *
            for all.
        forwarded_allow_ips: Addresses or networks of the proxies whose X-Forwarded-For or Forwarded
            names the client in the logs; unix for unix sockets, * for all.
        insecure: Listen beyond this machine without credentials.
        status_fd: Inherited descriptor to which the server writes JSON lines: its addresses when it
            listens, and its readiness when the models are loaded.
        token_file: File of bearer tokens, one in each line; every call except health needs one.
        control_token_file: File of bearer tokens for the calls that load and unload models.
        allowed_origins: Web origins whose pages may read answers (CORS) and load and unload models;
            * lets every page read answers.
        tls_cert: Certificate chain (PEM), for TLS on HTTP and gRPC.
        tls_key: Key of the certificate (PEM, no password), if it is in another file.
        tls_client_ca: Certificate authorities (PEM); every client needs a certificate of one of
            them.
        workers: Worker processes; each loads all models.
        threads: Threads of a worker for requests that Python answers.
        io_threads: Threads of a worker for its connections.
        worker_class: gunicorn worker class.
        worker_timeout: Seconds without a heartbeat after which a worker is replaced.
        max_connections: Most connections that a worker holds open.
        backlog: Most connections that wait to be accepted.
        keepalive: Seconds after which an idle connection is closed.
        head_timeout: Seconds in which a request's head must arrive.
        transfer_grace: Seconds of a transfer before --min-transfer-rate applies.
        min_transfer_rate: Least bytes per second of a transfer.
        transfer_timeout: Most seconds of a transfer; large transfers must be faster than
            --min-transfer-rate.
        max_connection_age: Seconds after which the server ends a connection, so that clients spread
            over new servers. Running requests finish. 0: never.
        max_connection_requests: Requests after which the server ends a connection. Running requests
            finish. 0: never.
        drain_delay: Seconds that the server serves on after SIGTERM, although it is not ready; 0 if
            no client was connected for as long before.
        stop_timeout: Seconds for running requests to finish when the server stops.
        decompress_requests: Accept gzip and deflate request bodies.
        compress_responses: Compress answers for clients that accept it.
        nan_literals: Write NaN and Infinity in JSON answers as literals instead of null.
        allow_shared_memory: Let clients on this machine pass tensors in shared memory (/dev/shm).
        jpeg_decoder: Decoder of JPEGs; auto takes libjpeg-turbo if ksrv was built with it.
        retain_freed_memory: Keep large buffers when they are freed: faster for images above 11
            megapixels, but the memory stays with the server.
        torchserve_api: Serve the inference and management routes and the gRPC services of
            TorchServe too.
        torchserve_config: TorchServe's config.properties, for archives that need one.
        log_format: Format of the log on stderr.
        log_level: Lowest level to log.
        access_log: Log a line for each HTTP request and each gRPC call.
        metrics: Serve /metrics.
        metrics_compat: Show metrics also under the names of triton (nv_inference_...) or kserve.
        trace: Export traces over OTLP; set the address by OpenTelemetry's variables (OTEL_...).
        ui: Serve the page at /, on which you look at the models and try them.
        docs: Serve Swagger UI at /docs (needs the extra docs).
    """

    models: tuple[str, ...] = ()
    model_name: str | None = None
    model_settings: str | None = None
    reload: bool = False
    debug: bool = False
    poll_interval: Annotated[float, Meta(ge=0)] = 0.0
    model_control: Literal["auto", "none", "poll", "explicit", "lazy"] = "auto"
    models_memory: Annotated[int, Meta(ge=0)] = 0
    load_model: tuple[str, ...] = ()
    parallel_loads: Annotated[int, Meta(ge=1)] = PARALLEL_LOADS
    ready_when: Literal["all", "any"] = "all"
    http: str = "127.0.0.1:8080"
    grpc: str = "127.0.0.1:9000"
    grpc_server: Literal["auto", "native", "grpcio"] = "auto"
    mount_prefix: str = ""
    proxy_protocol: Literal["off", "v1", "v2", "auto"] = "off"
    proxy_allow_ips: tuple[str, ...] = ("127.0.0.1", "::1")
    forwarded_allow_ips: tuple[str, ...] = ("127.0.0.1", "::1", "unix")
    insecure: bool = False
    status_fd: int | None = None
    token_file: str | None = None
    control_token_file: str | None = None
    allowed_origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    workers: Annotated[int, Meta(ge=1)] = 1
    threads: Annotated[int, Meta(ge=1)] = 16
    io_threads: Annotated[int, Meta(ge=2, le=4)] = 2
    worker_class: str = DEFAULT_WORKER_CLASS
    worker_timeout: Annotated[int, Meta(ge=0)] = 60
    max_connections: Annotated[int, Meta(ge=1)] = 4096
    backlog: Annotated[int, Meta(ge=1)] = 2048
    keepalive: Annotated[float, Meta(ge=0)] = 75.0
    head_timeout: Annotated[float, Meta(gt=0)] = 10.0
    transfer_grace: Annotated[float, Meta(gt=0)] = 10.0
    min_transfer_rate: Annotated[int, Meta(ge=1)] = 4096
    transfer_timeout: Annotated[int, Meta(ge=1)] = 300
    max_connection_age: Annotated[float, Meta(ge=0, le=1_000_000_000)] = 0.0
    max_connection_requests: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    drain_delay: Annotated[float, Meta(ge=0)] = 5.0
    stop_timeout: Annotated[float, Meta(ge=0)] = 30.0
    decompress_requests: bool = True
    compress_responses: bool = False
    nan_literals: bool = False
    allow_shared_memory: bool = False
    jpeg_decoder: Literal["auto", "libjpeg-turbo", "cv2"] = "auto"
    retain_freed_memory: bool = False
    torchserve_api: bool = False
    torchserve_config: str | None = None
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False
    metrics: bool = True
    metrics_compat: tuple[Literal["triton", "kserve"], ...] = ()
    trace: Literal["off", "otlp"] = "off"
    ui: bool = True
    docs: bool = True
    limits: Limits = msgspec.field(default_factory=Limits)

    @property
    def watch_seconds(self) -> float:
        """Seconds between looks for changed models; 0 if they are not looked for."""
        return self.poll_interval or (RELOAD_SECONDS if self.reload else 0.0)

"""Every setting of the server in one typed place, with its default and its meaning."""

from typing import Annotated, Any, Literal

import msgspec

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


def _says(text: str, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **bounds)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server. The descriptions are the help of `ksrv serve`."""

    models: Annotated[
        tuple[str, ...],
        _says(
            "Model repositories, model folders, model files or handlers (FILE.py:NAME) to serve."
        ),
    ] = ()
    model_name: Annotated[str | None, _says("Serve the only model at PATHS under this name.")] = (
        None
    )
    model_settings: Annotated[
        str | None,
        _says(
            "Settings for the only FILE.py at PATHS, as JSON; they override those in the file. @FILE"
            " reads the JSON from a file."
        ),
    ] = None
    reload: Annotated[bool, _says("For development: load a model again when its files change.")] = (
        False
    )
    debug: Annotated[
        bool,
        _says(
            "For development: show the end of a handler's traceback in answers, and allow profiles of"
            " single requests. Works on loopback only."
        ),
    ] = False
    poll_interval: Annotated[
        float,
        _says("Seconds after which ksrv looks for changed models again; 0: never.", ge=0),
    ] = 0.0
    model_control: Annotated[
        Literal["auto", "none", "poll", "explicit", "lazy"],
        _says(
            "Who may load and unload models: auto (calls and --poll-interval), none, poll (only "
            "--poll-interval, 15 s by default), explicit (only calls, beginning with --load-model), or lazy "
            "(a model is loaded when a request names it)."
        ),
    ] = "auto"
    models_memory: Annotated[
        int,
        _says(
            "With --model-control lazy: memory for the models of a worker, such as 8G. Beyond it, the "
            "models that were used least recently are unloaded. 0: no limit.",
            ge=0,
        ),
    ] = 0
    load_model: Annotated[
        tuple[str, ...],
        _says("With --model-control explicit: models to load at the start; * for all."),
    ] = ()
    parallel_loads: Annotated[
        int,
        _says(
            "Models that a worker loads at the same time; fewer need less memory. Imports and "
            "initialize run one after the other in any case.",
            ge=1,
        ),
    ] = PARALLEL_LOADS
    ready_when: Annotated[
        Literal["all", "any"],
        _says("Whether the server is ready when all models are, or when one is."),
    ] = "all"
    http: Annotated[str, _says("HTTP address HOST:PORT, unix:PATH or off; port 0 picks one.")] = (
        "127.0.0.1:8080"
    )
    grpc: Annotated[
        str,
        _says("gRPC address HOST:PORT, unix:PATH or off; port 0 picks one."),
    ] = "127.0.0.1:9000"
    grpc_server: Annotated[
        Literal["auto", "native", "grpcio"],
        _says(
            "Implementation of gRPC: native (needs libnghttp2), grpcio, or auto for native if "
            "possible."
        ),
    ] = "auto"
    mount_prefix: Annotated[
        str,
        _says("Prefix of all HTTP paths, such as /models, if a proxy keeps it."),
    ] = ""
    proxy_protocol: Annotated[
        Literal["off", "v1", "v2", "auto"],
        _says(
            "Version of the PROXY protocol by which a load balancer names its HTTP clients; auto for both."
        ),
    ] = "off"
    proxy_allow_ips: Annotated[
        tuple[str, ...],
        _says("Addresses or networks of the load balancers that send the PROXY header; * for all."),
    ] = ("127.0.0.1", "::1")
    forwarded_allow_ips: Annotated[
        tuple[str, ...],
        _says(
            "Addresses or networks of the proxies whose X-Forwarded-For or Forwarded names the client in the logs; "
            "unix for unix sockets, * for all."
        ),
    ] = ("127.0.0.1", "::1", "unix")
    insecure: Annotated[bool, _says("Listen beyond this machine without credentials.")] = False
    status_fd: Annotated[
        int | None,
        _says(
            "Inherited descriptor to which the server writes JSON lines: its addresses when it"
            " listens, and its readiness when the models are loaded."
        ),
    ] = None
    token_file: Annotated[
        str | None,
        _says("File of bearer tokens, one in each line; every call except health needs one."),
    ] = None
    control_token_file: Annotated[
        str | None, _says("File of bearer tokens for the calls that load and unload models.")
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        _says(
            "Web origins whose pages may read answers (CORS) and load and unload models; * lets every "
            "page read answers."
        ),
    ] = ()
    tls_cert: Annotated[str | None, _says("Certificate chain (PEM), for TLS on HTTP and gRPC.")] = (
        None
    )
    tls_key: Annotated[
        str | None, _says("Key of the certificate (PEM, no password), if it is in another file.")
    ] = None
    tls_client_ca: Annotated[
        str | None,
        _says("Certificate authorities (PEM); every client needs a certificate of one of them."),
    ] = None
    workers: Annotated[int, _says("Worker processes; each loads all models.", ge=1)] = 1
    threads: Annotated[
        int, _says("Threads of a worker for requests that Python answers.", ge=1)
    ] = 16
    io_threads: Annotated[
        int,
        _says("Threads of a worker for its connections.", ge=2, le=4),
    ] = 2
    worker_class: Annotated[str, _says("gunicorn worker class.")] = DEFAULT_WORKER_CLASS
    worker_timeout: Annotated[
        int,
        _says("Seconds without a heartbeat after which a worker is replaced.", ge=0),
    ] = 60
    max_connections: Annotated[int, _says("Most connections that a worker holds open.", ge=1)] = (
        4096
    )
    backlog: Annotated[int, _says("Most connections that wait to be accepted.", ge=1)] = 2048
    keepalive: Annotated[
        float, _says("Seconds after which an idle connection is closed.", ge=0)
    ] = 75.0
    head_timeout: Annotated[
        float, _says("Seconds in which a request's head must arrive.", gt=0)
    ] = 10.0
    transfer_grace: Annotated[
        float,
        _says("Seconds of a transfer before --min-transfer-rate applies.", gt=0),
    ] = 10.0
    min_transfer_rate: Annotated[int, _says("Least bytes per second of a transfer.", ge=1)] = 4096
    transfer_timeout: Annotated[
        int,
        _says(
            "Most seconds of a transfer; large transfers must be faster than --min-transfer-rate.",
            ge=1,
        ),
    ] = 300
    max_connection_age: Annotated[
        float,
        _says(
            "Seconds after which the server ends a connection, so that clients spread over new "
            "servers. Running requests finish. 0: never.",
            ge=0,
            le=1_000_000_000,
        ),
    ] = 0.0
    max_connection_requests: Annotated[
        int,
        _says(
            "Requests after which the server ends a connection. Running requests finish. 0: never.",
            ge=0,
            le=1 << 40,
        ),
    ] = 0
    drain_delay: Annotated[
        float,
        _says(
            "Seconds that the server serves on after SIGTERM, although it is not ready; 0 if no "
            "client was connected for as long before.",
            ge=0,
        ),
    ] = 5.0
    stop_timeout: Annotated[
        float,
        _says("Seconds for running requests to finish when the server stops.", ge=0),
    ] = 30.0
    decompress_requests: Annotated[bool, _says("Accept gzip and deflate request bodies.")] = True
    compress_responses: Annotated[bool, _says("Compress answers for clients that accept it.")] = (
        False
    )
    nan_literals: Annotated[
        bool, _says("Write NaN and Infinity in JSON answers as literals instead of null.")
    ] = False
    allow_shared_memory: Annotated[
        bool, _says("Let clients on this machine pass tensors in shared memory (/dev/shm).")
    ] = False
    jpeg_decoder: Annotated[
        Literal["auto", "libjpeg-turbo", "cv2"],
        _says("Decoder of JPEGs; auto takes libjpeg-turbo if ksrv was built with it."),
    ] = "auto"
    retain_freed_memory: Annotated[
        bool,
        _says(
            "Keep large buffers when they are freed: faster for images above 11 megapixels, but the"
            " memory stays with the server."
        ),
    ] = False
    torchserve_api: Annotated[
        bool,
        _says("Serve the inference and management routes and the gRPC services of TorchServe too."),
    ] = False
    torchserve_config: Annotated[
        str | None, _says("TorchServe's config.properties, for archives that need one.")
    ] = None
    log_format: Annotated[Literal["text", "json"], _says("Format of the log on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _says("Lowest level to log.")
    ] = "info"
    access_log: Annotated[bool, _says("Log a line for each HTTP request and each gRPC call.")] = (
        False
    )
    metrics: Annotated[bool, _says("Serve /metrics.")] = True
    metrics_compat: Annotated[
        tuple[Literal["triton", "kserve"], ...],
        _says("Show metrics also under the names of triton (nv_inference_...) or kserve."),
    ] = ()
    trace: Annotated[
        Literal["off", "otlp"],
        _says("Export traces over OTLP; set the address by OpenTelemetry's variables (OTEL_...)."),
    ] = "off"
    ui: Annotated[
        bool, _says("Serve the page at /, on which you look at the models and try them.")
    ] = True
    docs: Annotated[bool, _says("Serve Swagger UI at /docs (needs the extra docs).")] = True
    limits: Limits = msgspec.field(default_factory=Limits)

    @property
    def watch_seconds(self) -> float:
        """Seconds between looks for changed models; 0 if they are not looked for."""
        return self.poll_interval or (RELOAD_SECONDS if self.reload else 0.0)

"""Every setting of the server in one typed place, with its default and its meaning."""

from typing import Annotated, Literal

import msgspec

from ksrv.engine.settings import PARALLEL_LOADS
from ksrv.limits import Limits
from ksrv.observe.metric_aliases import MetricAliases

DEFAULT_WORKER_CLASS = "ksrv.server.worker:KsrvWorker"
"""The gunicorn worker of `ksrv serve`; the one place that names it."""

RELOAD_SECONDS = 0.5
"""How often `reload` looks for changed files."""


class SettingsError(ValueError):
    """A setting is unknown or has a value that cannot be; the text names it and its source."""


def _says(text: str, least: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=least)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server. The descriptions are the help of `ksrv serve`."""

    models: Annotated[
        tuple[str, ...],
        _says(
            "Model repositories, model folders, model files or handlers (FILE.py:NAME) to serve."
        ),
    ] = ()
    model_name: Annotated[
        str | None, _says("Name of the one model at PATHS, instead of its folder's or file's.")
    ] = None
    model_settings: Annotated[
        str | None,
        _says(
            "Settings of the one FILE.py at PATHS as JSON, over those in the file; @FILE reads the JSON"
            " from a file."
        ),
    ] = None
    status_fd: Annotated[
        int | None,
        _says(
            "Inherited descriptor for lines of JSON: where the server listens, then that its models"
            " are loaded."
        ),
    ] = None
    reload: Annotated[
        bool, _says("For development: load models anew as soon as their files change.")
    ] = False
    debug: Annotated[
        bool,
        _says(
            "For development: the end of a handler's traceback in its answers, and profiles of single"
            " requests; only on loopback."
        ),
    ] = False
    http: Annotated[str, _says("HTTP address HOST:PORT, unix:PATH or off; port 0 picks one.")] = (
        "127.0.0.1:8080"
    )
    grpc: Annotated[
        str,
        _says(
            "gRPC address HOST:PORT or unix:PATH, beside the HTTP address; http for that one alone; "
            "off for none. Port 0 picks one."
        ),
    ] = "127.0.0.1:9000"
    grpc_server: Annotated[
        Literal["auto", "native", "grpcio"],
        _says(
            "What carries gRPC: libnghttp2 in the native server, grpcio, or auto for the native server "
            "where it can serve."
        ),
    ] = "auto"
    http2: Annotated[
        bool,
        _says(
            "Serve HTTP/2 on the HTTP address too, for REST and gRPC, where libnghttp2 is there."
        ),
    ] = True
    max_connection_age: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1_000_000_000,
            description=(
                "Seconds after which a connection of HTTP/1.1, HTTP/2 or gRPC is told to end, so that clients spread "
                "over new servers; what runs is finished. 0: never."
            ),
        ),
    ] = 0.0
    max_connection_requests: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1 << 40,
            description=(
                "Requests after which a connection of HTTP/1.1, HTTP/2 or gRPC is told to end; what runs is "
                "finished. 0: never."
            ),
        ),
    ] = 0
    workers: Annotated[
        int, msgspec.Meta(ge=1, description="Worker processes; each holds its own models.")
    ] = 1
    threads: Annotated[
        int, msgspec.Meta(ge=1, description="Threads of a worker for requests in Python.")
    ] = 16
    worker_class: Annotated[str, _says("gunicorn worker class.")] = DEFAULT_WORKER_CLASS
    max_connections: Annotated[
        int, msgspec.Meta(ge=1, description="Connections that one worker holds open at most.")
    ] = 4096
    backlog: Annotated[
        int, msgspec.Meta(ge=1, description="Connections that wait to be accepted at most.")
    ] = 2048
    keepalive: Annotated[
        float, msgspec.Meta(ge=0, description="Seconds before an idle connection is closed.")
    ] = 75.0
    proxy_protocol: Annotated[
        Literal["off", "v1", "v2", "auto"],
        _says(
            "Versions of the PROXY protocol with which a load balancer names each client of HTTP; auto takes both."
        ),
    ] = "off"
    proxy_allow_ips: Annotated[
        tuple[str, ...],
        _says(
            "Addresses or networks of those load balancers, whose connections must begin with the header; * for all."
        ),
    ] = ("127.0.0.1", "::1")
    mount_prefix: Annotated[
        str,
        _says("Prefix of all HTTP paths, such as /models, where a proxy passes it on."),
    ] = ""
    worker_timeout: Annotated[
        int,
        msgspec.Meta(ge=0, description="Seconds without a heartbeat before a worker is replaced."),
    ] = 60
    io_threads: Annotated[
        int,
        msgspec.Meta(ge=2, le=4, description="Threads of a worker that own its connections."),
    ] = 2
    head_timeout: Annotated[
        float, msgspec.Meta(gt=0, description="Seconds in which a request's head must arrive.")
    ] = 10.0
    transfer_grace: Annotated[
        float, msgspec.Meta(gt=0, description="Seconds of a transfer before its rate counts.")
    ] = 10.0
    min_transfer_rate: Annotated[
        int, msgspec.Meta(ge=1, description="Bytes per second that a transfer must make.")
    ] = 4096
    transfer_timeout: Annotated[
        int,
        msgspec.Meta(
            ge=1, description="Seconds for a transfer of any size, which raises its minimum rate."
        ),
    ] = 300
    drain_delay: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            description=(
                "Seconds after SIGTERM in which an unready server still accepts; none where no client "
                "was connected for as long before."
            ),
        ),
    ] = 5.0
    stop_timeout: Annotated[
        float,
        msgspec.Meta(ge=0, description="Seconds that running requests get to finish on stop."),
    ] = 30.0
    insecure: Annotated[bool, _says("Listen beyond this machine without credentials.")] = False
    token_file: Annotated[
        str | None, _says("File of bearer tokens, one a line; every call but health needs one.")
    ] = None
    tls_cert: Annotated[
        str | None, _says("Certificate chain (PEM): HTTP and gRPC are served with TLS.")
    ] = None
    tls_key: Annotated[
        str | None, _says("Its key (PEM, no password), if it is not in the same file.")
    ] = None
    tls_client_ca: Annotated[
        str | None, _says("Authorities (PEM) of which every client needs a certificate.")
    ] = None
    control_token_file: Annotated[
        str | None, _says("File of bearer tokens for the routes that change the repository.")
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        _says(
            "Web origins whose pages may read answers (CORS), and call the routes that change things; * lets "
            "every page read."
        ),
    ] = ()
    jpeg_decoder: Annotated[
        Literal["auto", "libjpeg-turbo", "cv2"],
        _says("Decoder of JPEGs; auto takes libjpeg-turbo where ksrv was built with it."),
    ] = "auto"
    retain_freed_memory: Annotated[
        bool,
        _says(
            "Take large buffers from the heap and keep them when freed: faster for images above"
            " 11 megapixels, for memory that is never given back."
        ),
    ] = False
    decompress_requests: Annotated[bool, _says("Accept gzip and deflate request bodies.")] = True
    compress_responses: Annotated[
        bool, _says("Compress answers for clients that accept it; most clients always do.")
    ] = False
    nan_literals: Annotated[
        bool, _says("Write NaN and Infinity in JSON answers as literals instead of null.")
    ] = False
    allow_shared_memory: Annotated[
        bool, _says("Let clients on this machine pass tensors in /dev/shm.")
    ] = False
    metrics: Annotated[bool, _says("Serve /metrics.")] = True
    metrics_compat: Annotated[
        tuple[MetricAliases, ...],
        _says("Metrics once more under the names of triton (nv_inference_...) or kserve."),
    ] = ()
    ui: Annotated[bool, _says("Serve the page at / that shows the models and tries them.")] = True
    docs: Annotated[
        bool, _says("Serve the viewer of the routes and models at /docs (extra docs).")
    ] = True
    torchserve_api: Annotated[
        bool,
        _says(
            "Serve TorchServe's routes for inference and management, and its gRPC services, too."
        ),
    ] = False
    torchserve_config: Annotated[
        str | None, _says("A TorchServe config.properties for archives that expect one.")
    ] = None
    model_control: Annotated[
        Literal["auto", "none", "poll", "explicit", "lazy"],
        _says(
            "Who changes the models: auto for calls and --poll-interval alike; none; poll for the poll "
            "alone, every 15 s unless set; explicit for calls alone, beginning with --load-model; lazy loads a "
            "model when a request names it."
        ),
    ] = "auto"
    models_memory: Annotated[
        int,
        _says(
            "With --model-control lazy: bytes that a worker's models may hold, such as 8G, before those that were "
            "used least recently are put away; 0 for no bound.",
            least=0,
        ),
    ] = 0
    load_model: Annotated[
        tuple[str, ...],
        _says("Models to load at the start with --model-control explicit; * for all."),
    ] = ()
    poll_interval: Annotated[
        float,
        msgspec.Meta(ge=0, description="Seconds between looks for changed models; 0 never looks."),
    ] = 0.0
    parallel_loads: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="Models that a worker loads at a time; fewer take less memory. Their imports and handlers' "
            "initialize wait for each other, model files and warm-ups do not.",
        ),
    ] = PARALLEL_LOADS
    ready_when: Annotated[
        Literal["all", "any"], _says("Ready with all models loaded, or with any.")
    ] = "all"
    log_format: Annotated[Literal["text", "json"], _says("Form of the log on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _says("Least level that is logged.")
    ] = "info"
    trace: Annotated[
        Literal["off", "otlp"],
        _says("Export traces over OTLP; where to, OpenTelemetry's own variables (OTEL_...) say."),
    ] = "off"
    access_log: Annotated[bool, _says("Log a line for each HTTP request and gRPC call.")] = False
    limits: Limits = msgspec.field(default_factory=Limits)

    @property
    def watch_seconds(self) -> float:
        """Seconds between looks for changed models; 0 where nothing looks."""
        return self.poll_interval or (RELOAD_SECONDS if self.reload else 0.0)

"""Which way HTTP is served: by the native server, or on threads of Python's, and the reason.

Settings of gunicorn's and releases that `ksrv.server.worker` does not know leave the native server out.
"""

import os
from typing import Any

import gunicorn
from gunicorn import arbiter, sock
from gunicorn.config import Config
from gunicorn.http import message, wsgi
from gunicorn.workers import gthread

from ksrv.server.http.expect_continue import defer_continue
from ksrv.server.tls import why_python_encrypts

KNOWN_MAJOR = 27
"""The gunicorn release whose internals `ksrv.server.worker` was written against."""


USED_INTERNALS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        gthread.ThreadWorker,
        (
            "handle",
            "handle_exit",
            "handle_request",
            "is_parent_alive",
            "set_accept_enabled",
            "wait_for_and_dispatch_events",
        ),
    ),
    (gthread.TConn, ("init", "close")),
    (gthread.PollableMethodQueue, ("defer", "fileno", "run_callbacks", "close")),
    (message.Message, ("set_body_reader", "should_close")),
    (
        message,
        ("DEFAULT_MAX_HEADERFIELD_SIZE", "MAX_HEADERS", "MAX_REQUEST_LINE", "Request"),
    ),
    (wsgi, ("create",)),
    (wsgi.Response, ("start_response", "process_headers", "should_close")),
    (sock, ("_get_alpn_protocols", "ssl_context")),
    (
        arbiter.Arbiter,
        ("START_CTX", "LISTENERS", "reload", "spawn_worker", "spawn_workers", "stop"),
    ),
)
USED_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        gthread.ThreadWorker,
        ("max_requests", "method_queue", "nr_conns", "poller", "tpool", "worker_connections"),
    ),
    (message.Request, ("_expected_100_continue",)),
    (wsgi.Response, ("_omits_body",)),
)
"""What constructors set."""


def missing_internals() -> list[str]:
    """Return what `ksrv.server.worker` uses of gunicorn and this gunicorn does not have."""
    missing = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, names in USED_INTERNALS
        for name in names
        if not hasattr(owner, name)
    ] + [
        f"{owner.__name__}.{name}"
        for owner, names in USED_ATTRIBUTES
        for name in names
        if not _is_set(owner, name)
    ]
    if gunicorn.version_info[0] != KNOWN_MAJOR:
        missing.insert(0, f"gunicorn {KNOWN_MAJOR} (this is {gunicorn.__version__})")
    return missing


def _is_set(owner: type, name: str) -> bool:
    """Tell whether a constructor of a class sets an attribute."""
    codes = [getattr(vars(one).get("__init__"), "__code__", None) for one in owner.__mro__]
    return any(name in code.co_names for code in codes if code is not None)


def why_not_native(cfg: Config, app: Any) -> str | None:
    """Say why the HTTP server may not stand in front of this worker, or None where it may."""
    if getattr(app, "engine", None) is None:
        return "the app is not ksrv's"
    return why_settings_not_native(cfg)


def why_settings_not_native(cfg: Config) -> str | None:
    """Say which setting leaves the HTTP server away, or None."""
    missing = missing_internals()
    if missing:
        return f"it needs {', '.join(missing)}"
    hooks = [name for name in ("pre_request", "post_request") if _is_users_hook(cfg, name)]
    reasons = (
        (cfg.proxy_protocol != "off", "proxy_protocol is on"),
        (getattr(cfg, "http2_cleartext", "off") != "off", "http2_cleartext is on"),
        (getattr(cfg, "protocol", "http") != "http", "the protocol is not HTTP"),
        (bool(hooks), f"the hook {' and '.join(hooks)} is set"),
        ("SCRIPT_NAME" in os.environ, "SCRIPT_NAME is set"),
        (len(cfg.secure_scheme_headers) > 8, "more than 8 secure_scheme_headers are set"),
    )
    return next((reason for holds, reason in reasons if holds), why_python_encrypts(cfg))


def speaks_otherwise(cfg: Config) -> bool:
    """Tell whether clients may speak something else than HTTP/1."""
    return (
        getattr(cfg, "http2_cleartext", "off") != "off"
        or getattr(cfg, "protocol", "http") != "http"
        or (cfg.is_ssl and "h2" in cfg.http_protocols)
    )


def _is_users_hook(cfg: Config, name: str) -> bool:
    hook = getattr(cfg, name)
    if hook is defer_continue:
        return False
    default = cfg.settings[name].default
    return getattr(hook, "__code__", hook) is not getattr(default, "__code__", default)

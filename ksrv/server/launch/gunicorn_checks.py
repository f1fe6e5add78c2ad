"""ksrv's requirements on gunicorn, and the settings of gunicorn that it cannot honour: checked when a server starts.

gunicorn keeps the master process, its signals, the sockets and the settings. If it is another major release, or if a
setting asks for something that the native HTTP server does not do, the server does not start, and a sentence says why.
A reload with such a setting is refused and changes nothing. A test lists the names of gunicorn that ksrv overrides.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import gunicorn

from ksrv._native.http.proxy_header import ProxyRules
from ksrv._native.tls.tls_context import why_no_tls
from ksrv.server.settings import DEFAULT_WORKER_CLASS, SettingsError

KNOWN_MAJOR = 27
"""The release of gunicorn whose classes ksrv overrides."""

MOST_MOUNT_BYTES = 128
_MOUNT = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")


def check_gunicorn() -> None:
    """Refuse a gunicorn that ksrv was not written for.

    Raises:
        SettingsError: It is another major release.
    """
    if gunicorn.version_info[0] != KNOWN_MAJOR:
        raise SettingsError(
            f"ksrv needs gunicorn {KNOWN_MAJOR}, and {gunicorn.__version__} is installed; install "
            f"'gunicorn>={KNOWN_MAJOR},<{KNOWN_MAJOR + 1}'"
        )


def _is_own_hook(cfg: Any, name: str) -> bool:
    """Tell whether a hook is another function than gunicorn's default, which does nothing."""
    hook, default = getattr(cfg, name), cfg.settings[name].default
    return getattr(hook, "__code__", hook) is not getattr(default, "__code__", default)


def _is_not_default(cfg: Any, name: str) -> bool:
    return bool(getattr(cfg, name) != cfg.settings[name].default)


class Unsupported(NamedTuple):
    """A setting of gunicorn's that the native HTTP server does not honour.

    Attributes:
        setting: Its name.
        differs: Whether a configuration asks for something that the server does not do.
        instead: The remedy.
    """

    setting: str
    differs: Callable[[Any, str], bool]
    instead: str


_STRICT = "its head parser takes what RFC 9112 allows; leave it out"
_NO_HTTP2 = "leave it out: ksrv serves REST over HTTP/1.1, and gRPC at a separate address"
_OTHER_WORKER = "leave it out, or choose a worker class of gunicorn's own with --worker-class"

UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("pre_request", _is_own_hook, _OTHER_WORKER),
    Unsupported("post_request", _is_own_hook, _OTHER_WORKER),
    Unsupported("ssl_context", _is_own_hook, "name the files with certfile, keyfile and ca_certs"),
    Unsupported("protocol", _is_not_default, "clients speak HTTP"),
    Unsupported("http2_cleartext", _is_not_default, _NO_HTTP2),
    Unsupported("http_protocols", lambda cfg, name: "h2" in cfg.http_protocols, _NO_HTTP2),
    Unsupported("permit_obsolete_folding", _is_not_default, _STRICT),
    Unsupported("permit_unconventional_http_method", _is_not_default, _STRICT),
    Unsupported("permit_unconventional_http_version", _is_not_default, _STRICT),
    Unsupported("casefold_http_method", _is_not_default, _STRICT),
    Unsupported("strip_header_spaces", _is_not_default, _STRICT),
    Unsupported("header_map", lambda cfg, name: cfg.header_map == "dangerous", _STRICT),
)


def check_settings(cfg: Any) -> None:
    """Refuse settings of gunicorn's that the native HTTP server cannot honour.

    Args:
        cfg: gunicorn's configuration, whose worker class is ksrv's.

    Raises:
        SettingsError: There is one.
    """
    for setting, differs, instead in UNSUPPORTED:
        if setting in cfg.settings and differs(cfg, setting):
            raise SettingsError(
                f"gunicorn's setting '{setting}' is not honoured by ksrv's HTTP server; {instead}"
            )
    if cfg.is_ssl and (missing := why_no_tls()):
        raise SettingsError(
            f"TLS needs OpenSSL 3: {missing}; install it (the package libssl3 of Debian and Ubuntu, openssl-libs "
            f"of Fedora, libssl3 of Alpine), or let a proxy in front do the TLS"
        )


def check_mount_prefix(prefix: str) -> None:
    """Refuse a prefix that no path can have.

    Args:
        prefix: The prefix, or "".

    Raises:
        SettingsError: It does not begin with one slash, ends with one, or needs escapes.
    """
    if prefix and (len(prefix) > MOST_MOUNT_BYTES or not _MOUNT.fullmatch(prefix)):
        raise SettingsError(
            f"setting 'mount_prefix' (or the variable SCRIPT_NAME): expected a path such as /models, with letters, "
            f"digits and - . _ ~ between its slashes and at most {MOST_MOUNT_BYTES} bytes, found {prefix!r}"
        )


def check_proxies(addresses: Iterable[str]) -> None:
    """Refuse an entry that is not the address of a proxy.

    Args:
        addresses: Addresses and networks, or "*".

    Raises:
        SettingsError: One is neither.
    """
    for address in addresses:
        try:
            ProxyRules("off", [address])
        except ValueError as error:
            raise SettingsError(
                f"setting 'proxy_allow_ips': expected addresses or networks such as 10.0.0.0/8, or *: {error}"
            ) from None


def check_worker_class(name: str) -> None:
    """Refuse a worker class under which one request that waits would stop all others.

    Args:
        name: gunicorn's name for the class, or its path.

    Raises:
        SettingsError: Its workers run greenlets or coroutines on one thread, and ksrv's native code blocks that thread.
    """
    if any(kind in name.lower() for kind in ("gevent", "eventlet", "tornado", "asgi", "uvicorn")):
        raise SettingsError(
            f"setting 'worker_class': {name} serves many requests on one thread, and a request that waits for its "
            f"model would stop the others; leave it out for {DEFAULT_WORKER_CLASS}, or choose gthread"
        )

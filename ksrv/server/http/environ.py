"""The WSGI environment of a message that the native HTTP server has received, made from its head.

The native parser has checked the head already, so this module only splits it.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from gunicorn.config import Config

from ksrv._native.server.app_message import AppMessage
from ksrv._native.server.exchange import HeadFields
from ksrv.errors import NotFound, quote
from ksrv.server.http.callers import UNIX, TrustedProxies
from ksrv.server.http.head_faults import RefusedHead
from ksrv.server.http.received_body import MESSAGE

Environ = dict[str, Any]
Address = tuple[Any, ...] | str

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_BARE = {"CONTENT_TYPE", "CONTENT_LENGTH"}
"""Fields whose keys have no HTTP_ before their names (PEP 3333)."""


def field_keys(fields: Mapping[str, str]) -> Environ:
    """Return header fields by their keys in the environment. Names with "_" are ignored:
    `X_A` would get the key of `X-A`.
    """
    keys = ((name.upper().replace("-", "_"), name) for name in fields if "_" not in name)
    return {key if key in _BARE else f"HTTP_{key}": fields[name] for key, name in keys}


class Environs:
    """Makes the WSGI environments of a worker.

    Args:
        cfg: gunicorn's configuration: whether TLS is on, and the proxies that may set the scheme by a header field.
        servers: The address of each listener.
        mount: The prefix of all paths, "" for none: it becomes `SCRIPT_NAME`.
    """

    def __init__(self, cfg: Config, servers: Sequence[Address], mount: str = "") -> None:
        self._scheme = "https" if cfg.is_ssl else "http"
        self._scheme_fields: Mapping[str, str] = {
            "HTTP_" + name.upper().replace("-", "_"): value
            for name, value in cfg.secure_scheme_headers.items()
        }
        # gunicorn trusts every peer on a unix socket; its `forwarded_allow_ips` has no word for unix sockets.
        self._trusted = TrustedProxies((*cfg.forwarded_allow_ips, UNIX))
        self._servers = servers
        self._mount = mount
        self._constant: Environ = {
            "wsgi.version": (1, 0),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": cfg.workers > 1,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "SERVER_SOFTWARE": "ksrv",
        }

    def make(self, message: AppMessage) -> Environ:
        """Return the environment of a message, without its input.

        Args:
            message: The message.

        Raises:
            RefusedHead: Its header fields for the scheme contradict each other.
            NotFound: Its path is not below the mount prefix.
        """
        head = message.head.removeprefix(b"\r\n")
        method, target, version = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        environ = self._constant | {
            "REQUEST_METHOD": method,
            "RAW_URI": target,
            "SERVER_PROTOCOL": version,
            MESSAGE: message,
            **field_keys(HeadFields(head)),
        }
        path = self._set_target(environ, target)
        self._set_path(environ, path)
        self._set_peers(environ, message)
        return environ

    def _set_target(self, environ: Environ, target: str) -> str:
        """Set the query string, and the host if the target is a whole URL; return the path."""
        absolute = _ABSOLUTE.match(target)
        if absolute is not None:  # its host replaces the Host field (RFC 9112 3.2.2)
            environ["HTTP_HOST"] = absolute[1]
            target = target[absolute.end() :]
            if not target.startswith("/"):
                target = "/" + target
        path, _, query = target.partition("#")[0].partition("?")
        environ["QUERY_STRING"] = query
        return path

    def _set_path(self, environ: Environ, path: str) -> None:
        mount = self._mount
        if mount and path != "*":
            if path != mount and not path.startswith(mount + "/"):
                raise NotFound(
                    f"no route for {quote(path)}; the paths of this server begin with {mount}"
                )
            path = path[len(mount) :]
        environ["SCRIPT_NAME"] = mount
        environ["PATH_INFO"] = unquote_to_bytes(path).decode("latin-1")

    def _set_peers(self, environ: Environ, message: AppMessage) -> None:
        peer = message.peer
        environ["REMOTE_ADDR"] = peer if isinstance(peer, str) else peer[0]
        if not isinstance(peer, str):
            environ["REMOTE_PORT"] = str(peer[1])
        environ["wsgi.url_scheme"] = scheme = self._scheme_of(environ)
        server = self._servers[message.listener]
        if isinstance(server, str):  # a unix socket, which has no name that a client could use
            server = "localhost", 443 if scheme == "https" else 80
        environ["SERVER_NAME"], environ["SERVER_PORT"] = str(server[0]), str(server[1])

    def _scheme_of(self, environ: Environ) -> str:
        """Return the scheme that the client used: a trusted proxy's header fields win over the connection's scheme."""
        given = [
            environ[key] == secure for key, secure in self._scheme_fields.items() if key in environ
        ]
        if not given or not self._trusted.trust(environ["REMOTE_ADDR"]):
            return self._scheme
        if len(set(given)) > 1:
            raise RefusedHead(400, "the header fields for the scheme contradict each other")
        return "https" if given[0] else "http"

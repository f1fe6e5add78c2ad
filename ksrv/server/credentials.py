"""Checks callers: a bearer token for every call, and a control token for calls that change models.

Both front ends use `Access` before they read a message. Health calls need no credentials. If a token file is given, all
other calls need a token. Calls that change the repository or use shared memory need the control token; if none is
configured, only programs on this machine may make these calls. A browser on this machine is such a program, too, so
these calls are refused if they have an `Origin` header of a web page that is not allowed.
"""

import errno
import hashlib
import hmac

from ksrv._native.http.request_head import is_foreign_host, is_own_host
from ksrv.errors import Forbidden, InvalidToken, Unauthenticated, quote
from ksrv.server.addresses import is_local_peer
from ksrv.server.launch.operator_file import read_operator_file
from ksrv.server.settings import ServerSettings, SettingsError

_WRITE_TOKENS = "write a token in each line, such as one of `openssl rand -hex 32`"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: str) -> list[str]:
    """Return the tokens in a file: its lines without empty lines and comments.

    Raises:
        OSError: The file cannot be read, or is not UTF-8 text.
    """
    try:
        lines = read_operator_file(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text", path) from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _token_digests(path: str | None, setting: str) -> tuple[bytes, ...]:
    if path is None:
        return ()
    try:
        tokens = read_tokens(path)
    except OSError as error:
        raise SettingsError(
            f"setting '{setting}': {path} cannot be read: {error.strerror}; {_WRITE_TOKENS}"
        ) from error
    if not tokens:
        raise SettingsError(f"setting '{setting}': {path} holds no token; {_WRITE_TOKENS}")
    for number, token in enumerate(tokens, 1):
        if not token.isprintable():  # such as zeros in a file that was cut off by a crash
            raise SettingsError(
                f"setting '{setting}': token {number} of {path} has a control character, which no header may have; "
                f"{_WRITE_TOKENS}"
            )
    return tuple(_digest(token) for token in tokens)


def _refusal(authorization: str | None, who: str, token: str) -> Unauthenticated:
    """Return the error for a caller without the needed token.

    Args:
        authorization: The `Authorization` header or metadata entry, or None.
        who: The thing that needs the token: "this server".
        token: The needed token: "its token".
    """
    needs = f"{who} needs 'Authorization: Bearer TOKEN' with {token}"
    if not authorization:
        return Unauthenticated(f"{needs}, but the request has no 'Authorization'")
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        return Unauthenticated(f"{needs}, but the header 'Authorization' has another form")
    return InvalidToken(f"{needs}, but the token is wrong")


def _matches(authorization: str | None, accepted: tuple[bytes, ...]) -> bool:
    """Tell whether a header has an accepted token, in a time that does not depend on the token."""
    scheme, _, token = (authorization or "").partition(" ")
    given = _digest(token.strip())
    found = False
    for digest in accepted:
        found |= hmac.compare_digest(given, digest)
    return found and scheme.lower() == "bearer"


def check_client_limits(settings: ServerSettings) -> None:
    """Refuse limits for each client if clients cannot be distinguished.

    Raises:
        SettingsError: A limit for each client is set, but no token file.
    """
    for name in ("client_rate", "client_concurrency"):
        if getattr(settings.limits, name) > 0 and settings.token_file is None:
            raise SettingsError(
                f"setting 'limits.{name}': clients are distinguished by their tokens; give --token-file"
            )


class Access:
    """The checks of callers of one server.

    Args:
        settings: The settings, with the token files and allowed origins.

    Attributes:
        needs_token: Whether an ordinary call needs a token.
        has_control_token: Whether a control call needs the control token.
        hides_tokens: Whether `Authorization` is kept from handlers, because it may hold a token of this server.
        own_hosts: Whether calls over TCP are refused if their Host is not this machine. This is so if the server needs
            no credentials, but trusts callers on this machine: a web page of a stranger whose name resolves to this
            machine (DNS rebinding) calls from a browser on this machine, but with the stranger's name as Host.

    Raises:
        SettingsError: A token file cannot be read or has no token.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._tokens = _token_digests(settings.token_file, "token_file")
        self._control = _token_digests(settings.control_token_file, "control_token_file")
        self.has_control_token = bool(self._control)
        self.needs_token = bool(self._tokens)
        self.hides_tokens = bool(self._tokens or self._control)
        self.own_hosts = not (self._tokens or settings.tls_client_ca or settings.insecure)
        # "*" allows no page to make control calls.
        self._origins = frozenset(settings.allowed_origins) - {"*"}
        limits = settings.limits
        self._limits_clients = limits.client_rate > 0 or limits.client_concurrency > 0

    def check_host(self, host: str, *, peer: str) -> None:
        """Raise if the host of a call is not this machine and must be.

        Args:
            host: The `Host` header or `:authority`; "" if it is missing, which is never so in a browser.
            peer: The caller's IP address; "" for a unix socket.

        Raises:
            Forbidden: The call may be from a web page of a stranger.
        """
        if self.own_hosts and peer and is_foreign_host(host.encode("utf-8", "surrogateescape")):
            raise Forbidden(
                f"Host {quote(host)} is not this machine, so the call is refused: any web page could name it (DNS "
                f"rebinding). Call the server by its address or as localhost. For a proxy or another name, start the "
                f"server with --token-file, or with --insecure if the network keeps strangers out"
            )

    def client_of(self, authorization: str | None) -> str:
        """Return the key that limits a caller's requests; "" if clients are not limited.

        Args:
            authorization: The `Authorization` header or metadata entry of a call that `check` accepted.
        """
        if not self._limits_clients:
            return ""
        return _digest((authorization or "").partition(" ")[2].strip()).hex()

    def check(self, authorization: str | None) -> None:
        """Raise if an ordinary call lacks the needed token.

        Args:
            authorization: The `Authorization` header or metadata entry, if there is one.

        Raises:
            Unauthenticated: A token is needed, and no accepted token was sent.
        """
        if not self._tokens:
            return
        if not _matches(authorization, self._tokens + self._control):
            raise _refusal(authorization, "this server", "its token")

    def check_control(
        self,
        authorization: str | None,
        *,
        peer: str,
        forwarded: bool,
        origin: str | None,
        host: str,
    ) -> None:
        """Raise if a caller may not change the repository or use shared memory.

        Args:
            authorization: The `Authorization` header or metadata entry, if there is one.
            peer: The caller's IP address; "" for a unix socket.
            forwarded: Whether a proxy forwards the call for another caller.
            origin: The `Origin` header, if there is one.
            host: The `Host` header or `:authority`; "" without one.

        Raises:
            Forbidden: The caller is not on this machine, or is a web page that is not allowed.
            Unauthenticated: The control token is needed and was not sent.
        """
        # The page of this server has the server's host as its origin. If that host is a foreign name, the page may be
        # of a stranger (DNS rebinding), which only a control token keeps out.
        is_our_page = origin is not None and host != "" and origin.partition("://")[2] == host
        if is_our_page and not self._control:
            is_our_page = is_own_host(host.encode("utf-8", "surrogateescape"))
        if origin is not None and not is_our_page and origin not in self._origins:
            raise Forbidden(
                f"calls from web pages may not change models or use shared memory: {quote(origin)} is not "
                f"in --allowed-origins"
            )
        if self._control:
            if not _matches(authorization, self._control):
                raise _refusal(authorization, "this call", "the control token")
            return
        if forwarded or not is_local_peer(peer):
            raise Forbidden(
                "calls that change models or use shared memory are for programs on this machine that call without a "
                "proxy, and this call comes from elsewhere. To allow it, start the server with --control-token-file"
            )
        if peer and origin is None and not is_own_host(host.encode("utf-8", "surrogateescape")):
            # A web page of a stranger sends no Origin with a GET, so its Host is checked (DNS rebinding).
            raise Forbidden(
                f"Host {quote(host)} is not this machine, so control calls are refused. To allow them from elsewhere, "
                f"start the server with --control-token-file"
            )

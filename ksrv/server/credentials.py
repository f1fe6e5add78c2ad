"""Who may call: a bearer token for every call, and a control token for calls that change models.

One check is made before routing on both front ends. Health needs no credentials, everything else
does as soon as a token file is given. Calls that change the repository need the control token; if
none is configured they are open to callers on this machine only. A page in a user's browser runs
on this machine too, so a call that carries an `Origin` is refused unless it is allowed.
"""

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


def _read_tokens(path: str | None, setting: str) -> tuple[bytes, ...]:
    if path is None:
        return ()
    try:
        lines = read_operator_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"setting '{setting}': {path} cannot be read: {reason}; {_WRITE_TOKENS}"
        ) from error
    tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not tokens:
        raise SettingsError(f"setting '{setting}': {path} holds no token; {_WRITE_TOKENS}")
    for number, token in enumerate(tokens, 1):
        if not token.isprintable():  # as a file that was cut off by a crash holds zeros
            raise SettingsError(
                f"setting '{setting}': token {number} of {path} has a control character, which no header may have; "
                f"{_WRITE_TOKENS}"
            )
    return tuple(_digest(token) for token in tokens)


def _refusal(authorization: str | None, who: str, token: str) -> Unauthenticated:
    """Return the answer to a caller without the token that is needed.

    Args:
        authorization: The `Authorization` header or metadata entry, if there is one.
        who: The thing that needs the token: "this server".
        token: The token that it needs: "its token".
    """
    needs = f"{who} needs 'Authorization: Bearer TOKEN' with {token}"
    if not authorization:
        return Unauthenticated(f"{needs}, but the request has no 'Authorization'")
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        return Unauthenticated(f"{needs}, but the header 'Authorization' has another form")
    return InvalidToken(f"{needs}, but the token is wrong")


def _matches(authorization: str | None, accepted: tuple[bytes, ...]) -> bool:
    scheme, _, token = (authorization or "").partition(" ")
    given = _digest(token.strip())
    found = False
    for digest in accepted:
        found |= hmac.compare_digest(given, digest)
    return found and scheme.lower() == "bearer"


def check_client_limits(settings: ServerSettings) -> None:
    """Refuse limits for each client if clients cannot be distinguished.

    Raises:
        SettingsError: Such a limit is set, and no token file.
    """
    for name in ("client_rate", "client_concurrency"):
        if getattr(settings.limits, name) > 0 and settings.token_file is None:
            raise SettingsError(
                f"setting 'limits.{name}': clients are distinguished by their tokens; give --token-file"
            )


class Access:
    """The checks of one server.

    Args:
        settings: The settings, with the token files and allowed origins.

    Attributes:
        needs_token: Whether an ordinary call needs a token.
        has_control_token: Whether a control call needs the control token.
        hides_tokens: Whether `Authorization` is kept from handlers, because it may hold a token of this server.
        own_hosts: Whether calls over TCP with a foreign Host are refused, because the server is for this machine alone.
            Such a server trusts callers because of their address. The page of a stranger, whose name points at this
            machine (DNS rebinding), calls from a browser on this machine, but with the stranger's name as Host.

    Raises:
        SettingsError: A token file cannot be read or holds no token.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._tokens = _read_tokens(settings.token_file, "token_file")
        self._control = _read_tokens(settings.control_token_file, "control_token_file")
        self.has_control_token = bool(self._control)
        self.needs_token = bool(self._tokens)
        self.hides_tokens = bool(self._tokens or self._control)
        self.own_hosts = not (self._tokens or settings.tls_client_ca or settings.insecure)
        self._origins = frozenset(settings.allowed_origins) - {"*"}  # which names no page
        limits = settings.limits
        self._limits_clients = limits.client_rate > 0 or limits.client_concurrency > 0

    def check_host(self, host: str, *, peer: str) -> None:
        """Let a call pass by the host that it names, or raise.

        Args:
            host: The `Host` header or `:authority`; "" without one, as browsers never send.
            peer: The caller's IP address; "" for a unix socket.

        Raises:
            Forbidden: A web page of another machine could name that host.
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
            authorization: The `Authorization` header or metadata entry of a call that was let pass.
        """
        if not self._limits_clients:
            return ""
        return _digest((authorization or "").partition(" ")[2].strip()).hex()

    def check(self, authorization: str | None) -> None:
        """Let an ordinary call pass, or raise because it needs a token.

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
        """Let a call that changes the repository pass, or say why it may not.

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
        # The server's own page has the origin that is asked. Under a foreign name that could be any page (DNS rebinding).
        own = origin is not None and host != "" and origin.partition("://")[2] == host
        if own and not self._control:
            own = is_own_host(host.encode("utf-8", "surrogateescape"))
        if origin is not None and not own and origin not in self._origins:
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
            # A page whose name is made to lead to this machine (DNS rebinding) sends no Origin with a GET.
            raise Forbidden(
                f"Host {quote(host)} is not this machine, so control calls are refused. To allow them from elsewhere, "
                f"start the server with --control-token-file"
            )

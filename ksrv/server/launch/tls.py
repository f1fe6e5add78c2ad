"""TLS: reads certificate, key and authorities, checks them before the server listens, and makes OpenSSL's contexts.

HTTP and gRPC use the same files, which ksrv's or gunicorn's settings name. The master reads the files when it starts
and at each reload. The workers are forked from it and get the content that it read, so a file that is damaged later has
no effect until the next reload. The native servers encrypt with OpenSSL 3. Its settings (versions, ciphers, flags) are
copied from a context of Python's `ssl`.
"""

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ksrv._native.tls.tls_context import TicketKeys, TlsContext, why_no_tls
from ksrv.server.launch.operator_file import read_operator_file
from ksrv.server.settings import ServerSettings, SettingsError

if TYPE_CHECKING:
    import grpc


def gunicorn_options(settings: ServerSettings) -> dict[str, Any]:
    """Return gunicorn's settings for TLS; empty if TLS is off.

    Raises:
        SettingsError: There is a key or a client authority, but no certificate.
    """
    if settings.tls_cert is None:
        for key in ("tls_key", "tls_client_ca"):
            if getattr(settings, key) is not None:
                raise SettingsError(
                    f"setting '{key}': it needs tls_cert, the server's certificate; name it with --tls-cert"
                )
        return {}
    options: dict[str, Any] = {"certfile": settings.tls_cert, "keyfile": settings.tls_key}
    if settings.tls_client_ca is not None:
        options |= {"ca_certs": settings.tls_client_ca, "cert_reqs": int(ssl.CERT_REQUIRED)}
    return options


class Certificates:
    """The files of TLS as they were read; a change on disk has no effect before they are read again.

    Args:
        config: The configuration of gunicorn.

    Raises:
        SettingsError: One cannot be read, is not a certificate or key, or does not fit the other.

    Attributes:
        expiry: When the server's certificate ends, in seconds since 1970; 0 if that is unknown.
    """

    def __init__(self, config: Any) -> None:
        if not config.certfile:
            raise SettingsError(
                "TLS: there is a key, but no certificate (certfile); name it with --tls-cert"
            )
        self._needs_client_certificate = needs_certificate(config)
        if self._needs_client_certificate and not config.ca_certs:
            raise SettingsError(
                "TLS: certificates of clients are wanted, but no authority (ca_certs); name it with --tls-client-ca"
            )
        self._config = config
        self._chain = b""
        try:
            self._chain = read_operator_file(config.certfile)
            self._key = read_operator_file(config.keyfile) if config.keyfile else self._chain
            self._authority: bytes | None = None
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as error:
            names = " and ".join(name for name in (config.certfile, config.keyfile) if name)
            raise SettingsError(
                f"TLS: {names} cannot be used: {_reason(error)}; expected a certificate and its key, without "
                f"a password, as PEM{self._without_key()}"
            ) from error
        try:
            self._authority = read_operator_file(config.ca_certs) if config.ca_certs else None
            self._rules = self._make_rules()
        except OSError as error:
            raise SettingsError(
                f"TLS: {config.ca_certs} cannot be used: {_reason(error)}; expected certificates as PEM"
            ) from error
        self.expiry = _expiry(self._chain)
        # Equal for all workers, so that a session can be resumed at any of them. New with each reading, so
        # that a client whose authority was removed cannot return with an old session.
        self._ticket_keys: TicketKeys | None = None
        if why_no_tls() is None:
            self._ticket_keys = TicketKeys()
            self.native_context()  # raises before anything listens, if OpenSSL cannot use the files

    def _without_key(self) -> str:
        """Return the end of an error's sentence if no key file is set and the certificate file has no key; else ""."""
        if (
            self._config.keyfile
            or b"CERTIFICATE" not in self._chain
            or b"PRIVATE KEY" in self._chain
        ):
            return ""
        return f"; {self._config.certfile} holds no key: name its file with --tls-key"

    def _load(self, context: ssl.SSLContext) -> None:
        with _as_file(self._chain) as chain, _as_file(self._key) as key:
            # An encrypted key would have the server wait for a password on the terminal.
            context.load_cert_chain(chain, key, password="")

    def _make_rules(self) -> ssl.SSLContext:
        """Return Python's context, which encrypts nothing: `native_context` copies its settings."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(context)
        if self._authority is not None:
            with _as_file(self._authority) as authority:
                context.load_verify_locations(authority)
        context.verify_mode = self._config.cert_reqs
        if self._config.ciphers:
            context.set_ciphers(self._config.ciphers)
        return context

    def native_context(self, *protocols: str) -> TlsContext:
        """Return the context for the native servers' connections, with the settings of Python's `ssl`.

        Args:
            protocols: The protocols that ALPN may choose, the best first.

        Raises:
            SettingsError: The native servers' OpenSSL cannot use files that Python's OpenSSL has accepted.
        """
        rules = self._rules
        ciphers = [
            str(cipher["name"])
            for cipher in rules.get_ciphers()
            if cipher["protocol"] != "TLSv1.3"  # whose ciphers are all allowed, as in Python
        ]
        with ExitStack() as files:
            chain, key = (files.enter_context(_as_file(pem)) for pem in (self._chain, self._key))
            authority = self._authority and files.enter_context(_as_file(self._authority))
            try:
                return TlsContext(
                    chain,
                    key,
                    authority=authority or None,
                    asks=rules.verify_mode != ssl.CERT_NONE,
                    demands=rules.verify_mode == ssl.CERT_REQUIRED,
                    verify_flags=int(rules.verify_flags),
                    # "No bound" is negative in Python, and 0 in OpenSSL.
                    least_version=max(0, rules.minimum_version),
                    most_version=max(0, rules.maximum_version),
                    ciphers=":".join([f"@SECLEVEL={rules.security_level}", *ciphers]),
                    protocols=protocols,
                    ticket_keys=self._ticket_keys,
                )
            except (ValueError, RuntimeError) as error:
                raise SettingsError(
                    f"{error}, although Python's ssl module accepts the same files; `ksrv doctor` names the OpenSSL that "
                    f"refuses them"
                ) from error

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Return the credentials for a server of grpcio."""
        import grpc

        return grpc.ssl_server_credentials(
            [(self._key, self._chain)],
            self._authority,
            require_client_auth=self._needs_client_certificate,
        )


def _reason(error: OSError) -> str:
    """Return what OpenSSL or the system says, without the number of a line in C or the path."""
    if isinstance(error, ssl.SSLError):
        return re.sub(r" \(_ssl\.c:\d+\)$", "", str(error))
    return error.strerror or str(error)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give bytes a path (a memfd), because OpenSSL loads these objects only from files."""
    with open(os.memfd_create("ksrv-tls"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _expiry(chain: bytes) -> int:
    """Return when the first certificate of a chain ends, in seconds since 1970; 0 if that is unknown."""
    try:
        decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # ssl has no public decoder
        with _as_file(chain) as path:
            return int(ssl.cert_time_to_seconds(decode(path)["notAfter"]))
    except (AttributeError, ssl.SSLError, ValueError):
        # A Python without this function, or a date that OpenSSL accepts and `ssl` does not.
        return 0


def read_certificates(config: Any) -> Certificates | None:
    """Read the files that gunicorn's configuration names; None without TLS.

    Raises:
        SettingsError: One cannot be used.
    """
    return Certificates(config) if config.is_ssl else None


def needs_certificate(config: Any) -> bool:
    """Tell whether clients must present a certificate."""
    return bool(config.is_ssl) and config.cert_reqs == ssl.CERT_REQUIRED

"""TLS on both front ends, with the same files, which are tried before anything listens.

gunicorn does HTTP's TLS: what its own flags and files say holds, and gRPC follows it. The files are read
by every worker, so that a reload takes renewed ones.
"""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksrv.server.settings import ServerSettings, SettingsError

if TYPE_CHECKING:
    import grpc


def gunicorn_options(settings: ServerSettings) -> dict[str, Any]:
    """Return gunicorn's settings for TLS; none where it is not wanted.

    Args:
        settings: The server's settings.

    Raises:
        SettingsError: There is a key or a client authority, but no certificate.
    """
    if settings.tls_cert is None:
        for key in ("tls_key", "tls_client_ca"):
            if getattr(settings, key) is not None:
                raise SettingsError(f"setting '{key}': it needs tls_cert, the server's certificate")
        return {}
    options: dict[str, Any] = {"certfile": settings.tls_cert, "keyfile": settings.tls_key}
    if settings.tls_client_ca is not None:
        options |= {"ca_certs": settings.tls_client_ca, "cert_reqs": int(ssl.CERT_REQUIRED)}
    return options


def check(config: Any) -> None:
    """Try the files that gunicorn's configuration names.

    Args:
        config: gunicorn's configuration.

    Raises:
        SettingsError: One cannot be read, is no certificate or key, or does not fit the other.
    """
    if not config.is_ssl:
        return
    if not config.certfile:
        raise SettingsError("TLS: there is a key, but no certificate (certfile)")
    if needs_certificate(config) and not config.ca_certs:
        raise SettingsError("TLS: certificates of clients are wanted, but no authority (ca_certs)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key would have the server wait for somebody to type the password.
        context.load_cert_chain(config.certfile, config.keyfile, password="")
    except OSError as error:
        names = " and ".join(name for name in (config.certfile, config.keyfile) if name)
        raise SettingsError(
            f"TLS: {names} cannot be used: {error}; expected a certificate and its key, without a "
            f"password, as PEM"
        ) from error
    try:
        if config.ca_certs:
            context.load_verify_locations(config.ca_certs)
    except OSError as error:
        raise SettingsError(
            f"TLS: {config.ca_certs} cannot be used: {error}; expected certificates as PEM"
        ) from error


def needs_certificate(config: Any) -> bool:
    """Tell whether clients must present a certificate.

    Args:
        config: gunicorn's configuration.
    """
    return bool(config.is_ssl) and config.cert_reqs == ssl.CERT_REQUIRED


def grpc_credentials(config: Any) -> "grpc.ServerCredentials | None":
    """Return what gRPC listens with, or None without TLS.

    Args:
        config: gunicorn's configuration.

    Raises:
        OSError: A file cannot be read any more.
    """
    if not config.is_ssl:
        return None
    import grpc

    certificate = Path(config.certfile).read_bytes()
    key = Path(config.keyfile).read_bytes() if config.keyfile else certificate
    authority = Path(config.ca_certs).read_bytes() if config.ca_certs else None
    return grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=needs_certificate(config)
    )

"""A request's headers as handlers see them, read from the WSGI environment."""

from collections.abc import Callable

from ksrv.server.http.body import Environ
from ksrv.server.http.request_ids import REQUEST_ID


def request_headers(
    environ: Environ, *, with_credentials: bool, spelling: Callable[[str], str] = str.lower
) -> dict[str, str]:
    """Return the headers by name.

    Args:
        with_credentials: Whether handlers get `Authorization`. They do not if this server checks
            the token itself.
        spelling: How names are written: `str.lower` or `str.title`.
    """
    headers = {
        spelling(key[5:].replace("_", "-")): value
        for key, value in environ.items()
        if key.startswith("HTTP_")
    }
    for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(key):
            headers[spelling(key.replace("_", "-"))] = environ[key]
    if environ.get(REQUEST_ID):
        headers[spelling("x-request-id")] = environ[REQUEST_ID]
    if not with_credentials:
        headers.pop(spelling("authorization"), None)
    return headers

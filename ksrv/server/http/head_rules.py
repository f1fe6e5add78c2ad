"""What RFC 9112 asks of a head beyond gunicorn's parser: one Host, and an end where `Connection` lists `close`."""

from collections.abc import Iterator

from gunicorn.http.errors import InvalidHeader
from gunicorn.http.message import Request

from ksrv._native.http.request_head import is_host


class InvalidHost(InvalidHeader):  # type: ignore[misc]
    """A message without a Host that names where it is for; gunicorn's workers answer 400.

    Args:
        text: What is wrong, in words that the client may read.
    """

    def __init__(self, text: str) -> None:
        super().__init__("HOST")
        self._text = text

    def __str__(self) -> str:
        """Return what is wrong."""
        return self._text


def check_head(request: Request) -> None:
    """Refuse a head by its Host, and close behind a request that asks for it.

    Raises:
        InvalidHost: HTTP/1.1 has no Host, or the head has several or an impossible one (RFC 9112 3.2).
    """
    hosts = list(_values(request, "HOST"))
    if len(hosts) > 1:
        raise InvalidHost(f"the head has {len(hosts)} Host fields, where one is allowed")
    if not hosts and request.version >= (1, 1):
        raise InvalidHost("a request of HTTP/1.1 needs a Host field")
    if hosts and not is_host(hosts[0].strip(" \t").encode("latin-1")):
        raise InvalidHost("the Host field names no host with an optional port")
    options = ",".join(_values(request, "CONNECTION")).lower().split(",")
    if "close" in (option.strip(" \t") for option in options):  # RFC 9112 9.6
        request.force_close()


def _values(request: Request, name: str) -> Iterator[str]:
    return (value for field, value in request.headers if field == name)

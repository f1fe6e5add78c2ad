"""The account of a transfer whose length is known, where the connection keeps one."""

from typing import Any


def begin_transfer(environ: dict[str, Any], nbytes: int) -> None:
    """Ask the client for the rate that a body or an answer of so many bytes needs.

    Args:
        environ: The WSGI environment; a server whose sockets keep no account asks for nothing. Those
            of the threaded way do, see `ksrv.server.threaded.timed_socket`.
        nbytes: The length.
    """
    expect = getattr(environ.get("gunicorn.socket"), "expect", None)
    if expect is not None:
        expect(nbytes)

"""Ends a build on other systems than Linux with the command that serves there, before a compiler fails."""

import sys

CONTAINER = """error: ksrv runs on Linux only, and this is {system}: its event loop is epoll, and tensors are in sealed memfds.
Use the container there, which has the same command:

    docker build -f deploy/docker/Dockerfile -t ksrv:0.1.0 .
    docker run --rm -p 127.0.0.1:8080:8080 -e KSRV_INSECURE=true -v "$PWD/models:/models" ksrv:0.1.0

deploy/README.md says more. On Windows, WSL 2 is a Linux on which ksrv builds and runs."""

NAMES = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}


def check_system() -> None:
    """Exit with CONTAINER unless this is Linux."""
    if not sys.platform.startswith("linux"):
        sys.exit(CONTAINER.format(system=NAMES.get(sys.platform, sys.platform)))

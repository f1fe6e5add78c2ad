"""nginx and HAProxy in front of two servers, configured as their operators would."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.wait_until import wait_until


@dataclass(frozen=True)
class Backend:
    """The ports of one server."""

    http: int
    grpc: int


@dataclass(frozen=True)
class Proxy:
    """The addresses of a running proxy."""

    rest: str
    grpc: str


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _nginx(
    folder: Path, backends: Sequence[Backend], rest: int, grpc: int
) -> tuple[str, list[str]]:
    retries = "error timeout http_502 http_503 non_idempotent"

    def upstream(name: str, ports: Sequence[int]) -> str:
        servers = "".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
        return f"upstream {name} {{ {servers} keepalive 16; }}"

    text = f"""
        daemon off; pid {folder}/pid; error_log {folder}/log info;
        events {{ worker_connections 512; }}
        http {{
            access_log off;
            {"".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
            {upstream("rest", [one.http for one in backends])}
            {upstream("grpc", [one.grpc for one in backends])}
            server {{
                listen 127.0.0.1:{rest};
                location / {{
                    proxy_pass http://rest; proxy_http_version 1.1; proxy_set_header Connection "";
                    proxy_next_upstream {retries};
                }}
            }}
            server {{
                listen 127.0.0.1:{grpc} http2;
                location / {{ grpc_pass grpc://grpc; grpc_next_upstream {retries}; }}
            }}
        }}
    """
    return text, ["nginx", "-c", str(folder / "config.yaml")]


def _haproxy(
    folder: Path, backends: Sequence[Backend], rest: int, grpc: int
) -> tuple[str, list[str]]:
    def servers(kind: str) -> str:
        options = "proto h2 check-proto h1" if kind == "grpc" else ""
        return "".join(
            f"    server s{number} 127.0.0.1:{getattr(one, kind)} {options} check port {one.http} inter 300 fall 1 rise 1\n"
            for number, one in enumerate(backends)
        )

    text = f"""
defaults
    mode http
    timeout connect 2s
    timeout check 2s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    option httpchk GET /v2/health/ready
    retries 3
    retry-on conn-failure empty-response response-timeout 503
frontend rest
    bind 127.0.0.1:{rest}
    default_backend rest
frontend grpc
    bind 127.0.0.1:{grpc} proto h2
    default_backend grpc
backend rest
{servers("http")}
backend grpc
{servers("grpc")}
"""
    return text, ["haproxy", "-f", str(folder / "config.yaml"), "-db"]


KINDS = {"nginx": _nginx, "haproxy": _haproxy}


@contextlib.contextmanager
def running(kind: str, folder: Path, backends: Sequence[Backend]) -> Iterator[Proxy]:
    """Run a proxy in front of servers; the test is skipped if the proxy is not installed."""
    if shutil.which(kind) is None:
        pytest.skip(f"{kind} is not installed")
    folder.mkdir()
    rest, grpc = free_ports(2)
    text, command = KINDS[kind](folder, backends, rest, grpc)
    (folder / "config.yaml").write_text(text)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            for port in (rest, grpc):
                wait_until(lambda port=port: _listens(port), tell=(folder / "output").read_text)  # type: ignore[misc]
            yield Proxy(f"http://127.0.0.1:{rest}", f"127.0.0.1:{grpc}")
        finally:
            process.terminate()
            process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0

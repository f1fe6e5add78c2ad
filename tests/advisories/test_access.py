"""Attacks on who may call: other ways to a route, other hosts, web pages, names of memory, tokens in the log."""

import os
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests

from ksrv.protocol.protobuf import INFERENCE
from ksrv.testing import Server
from tests.advisories.conftest import unharmed
from tests.advisories.test_http import send, statuses
from tests.support.error_texts import check_text
from tests.support.processes import children
from tests.support.wire.grpc_calls import call, connect
from tests.support.wire.http2_wire import Wire

pytestmark = pytest.mark.long

USER, OPERATOR = "a-users-token", "the-operators-token"
BODY = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
ROUTES = """
    GET /v2
    GET /v2/models
    GET /v2/models/double
    POST /v2/models/double/infer
    POST /v2/models/double/generate
    POST /v2/repository/index
    POST /v2/repository/models/double/unload
    GET /v2/logging
    GET /metrics
    GET /v1/models
    POST /v1/models/double:predict
    POST /v1/embeddings
    POST /invocations
    POST /predictions/double
    GET /models
    GET /openapi.json
    GET /v1/config
"""
"""One route of each dialect, and /invocations of SageMaker and MLflow."""
DETOURS = (
    "{path}/",
    "/{path}",
    "//{path}",
    "/v2/health/live/..{path}",
    "/ui/../{path}",
    "/%2e{path}",
    "{path}?token=a",
    "{path};a",
    "{path}%20",
    "{path}/.",
    "http://localhost{path}",
    "http://localhost/{path}",
)
FIELDS = (
    "X-Original-URL: {path}",
    "X-HTTP-Method-Override: GET",
    "Authorization: bearer",
    "Authorization: Bearer",
    "Authorization: Bearer null",
    "Authorization: Basic YTpi",
    "X-Forwarded-For: 127.0.0.1",
    "Upgrade: h2c",
    "triton-admin: a",
)


@pytest.mark.parametrize("route", ROUTES.strip().splitlines())
def test_no_detour_leads_around_the_token(guarded: Server, route: str) -> None:
    """CVE-2026-24206, CVE-2026-24207, vllm#58144, LitServe#659: one route, or one way to write it, was not asked."""
    method, path = route.split()
    heads = [(detour.format(path=path), "X: y") for detour in DETOURS]
    heads += [(path, field.format(path=path)) for field in FIELDS]
    with unharmed(guarded, USER) as answers:
        for target, field in [(path, "X: y"), *heads]:
            lines = f"{method} {target} HTTP/1.1", "Host: localhost", field, "Connection: close"
            message = "\r\n".join((*lines, f"Content-Length: {len(BODY)}", "", BODY))
            answers.append(received := send(guarded, message.encode()))
            assert statuses(received)[0] in (400, 401, 403, 404, 405), (target, field, received)
            assert b'"outputs"' not in received
        plain = requests.request(method, guarded.url + path, data=BODY, timeout=60)
        assert plain.status_code == 401
        assert "token" in plain.text


def test_calls_of_grpc_need_a_token_by_every_path(guarded: Server) -> None:
    """CVE-2026-33186: a path without its first slash was checked by other rules, and served."""
    paths = [f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/RepositoryModelUnload"]
    paths += [path[1:] for path in paths] + ["/" + path for path in paths]
    paths += [paths[0] + "/", paths[0] + "?a", paths[0].upper(), f"http://localhost{paths[0]}", "*"]
    with unharmed(guarded, USER), Wire(guarded.grpc) as wire:
        for path in paths:
            stream = wire.call(path, message=b"\n\x06double")
            ended = wire.until_ended(stream)
            status = re.search(rb"grpc-status: (\d+)", ended)
            # UNAUTHENTICATED, UNIMPLEMENTED, or a stream that is reset or refused by HTTP.
            refused = status and int(status[1]) in (16, 12)
            assert refused or stream in wire.resets or b":status: 4" in ended, (path, ended)


PAGES = {
    "CVE-2025-62593": {"Host": "evil.example", "User-Agent": "Other"},
    "CVE-2025-14279": {"Host": "evil.example", "Sec-Fetch-Site": "same-origin"},
    "CVE-2024-28224": {"Host": "evil.example:8080"},
    "CVE-2024-47165": {"Origin": "null"},
    "CVE-2024-1727": {"Origin": "https://evil.example", "Content-Type": "text/plain"},
}


@pytest.mark.parametrize("number", PAGES)
def test_web_page_changes_nothing(server: Server, number: str) -> None:
    """tests/integration/access/test_rebinding.py and test_cross_origin.py have the other routes and gRPC."""
    rebound = "Host" in PAGES[number]  # a page of another origin may read, but gets no CORS headers
    with unharmed(server) as answers:
        for path in ("/v2/repository/models/double/unload", "/v2/logging", "/models?url=a.mar"):
            answer = requests.post(server.url + path, headers=PAGES[number], timeout=60)
            answers.append(answer.text)
            assert answer.status_code == 403, (path, answer.text)
            assert "--" in answer.text  # the option that would allow it
        read = requests.get(f"{server.url}/v2/models", headers=PAGES[number], timeout=60)
        assert read.status_code == (403 if rebound else 200)
        assert "Access-Control-Allow-Origin" not in read.headers


def test_tokens_are_not_logged(guarded: Server) -> None:
    """LitServe#754, CVE-2025-1979: a key in the log."""
    with unharmed(guarded, USER):
        for token in (USER, OPERATOR, "a-wrong-token"):
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/v2/repository/models/double/load", "/v2/models/none/infer"):
                requests.post(guarded.url + path, headers=headers, timeout=60)
        with connect(guarded.grpc) as channel, pytest.raises(grpc.RpcError):
            call(channel, "ServerMetadata", metadata=[("authorization", "Bearer a-wrong-token")])
    assert "audit" in guarded.log
    for token in (USER, OPERATOR, "a-wrong-token"):
        assert token not in guarded.log


def listeners(pids: list[int]) -> set[str]:
    """The addresses on which processes listen, as in /proc/net/tcp."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
    rows = [line.split() for name in ("tcp", "tcp6", "udp", "udp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]  # fmt: skip
    return {row[1] for row in rows if row[3] in ("0A", "07") and row[9] in inodes}


def test_nothing_listens_but_the_two_ports(server: Server) -> None:
    """CVE-2024-35199, CVE-2025-30202, CVE-2026-3059: ports for other processes, on every interface."""
    workers = children(server.process.pid)
    tree = [server.process.pid, *workers, *(pid for one in workers for pid in children(one))]
    ports = {int(address.rpartition(":")[2]) for address in (server.http, server.grpc)}
    assert listeners(tree) == {f"0100007F:{port:04X}" for port in ports}


def test_names_of_the_servers_own_memory_are_no_regions(repository: Path, tmp_path: Path) -> None:
    """CVE-2025-23319, CVE-2025-23320, CVE-2025-23334: an error named internal memory, which a client then registered."""
    (tmp_path / "control").write_text(OPERATOR)
    settings: dict[str, Any] = {
        "allow_shared_memory": True,
        "control_token_file": str(tmp_path / "control"),
    }
    with Server(repository, **settings) as server, unharmed(server) as answers:
        [worker] = children(server.process.pid)
        maps = Path(f"/proc/{worker}/maps").read_text()
        names = set(re.findall(r"/memfd:(\S+)", maps)) | {"../proc/self/mem", "a/b", ".", ""}
        for name in names:
            answer = requests.post(
                f"{server.url}/v2/systemsharedmemory/region/own/register",
                json={"key": name, "byte_size": 64},
                headers={"Authorization": f"Bearer {OPERATOR}"},
                timeout=60,
            )
            answers.append(answer.text)
            assert 400 <= answer.status_code < 500, (name, answer.text)
        large = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 400_000}
        answer = requests.post(
            f"{server.url}/v2/models/double/infer", json={"inputs": [large]}, timeout=60
        )
        assert answer.status_code == 400
        check_text(answer.json()["error"])
        assert not any(name and name in answer.text for name in names - {"."})

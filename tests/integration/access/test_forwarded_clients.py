"""Behind a proxy, the access log and the audit log name the client: `--forwarded-allow-ips`."""

import json
import socket

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, row_request, stub_infer
from tests.support.wire.http_reader import double_body

CLIENT = "192.0.2.7"
FORWARDED = {"X-Forwarded-For": f"198.51.100.1, {CLIENT}"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forwarded")
    write_double(folder)
    return folder


def records(server, logger, wanted):
    """The records of a logger, once there are so many."""
    found = []

    def look():
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        found[:] = [line for line in lines if line["logger"] == logger]
        return len(found) >= wanted

    wait_until(look)
    return found


@pytest.mark.parametrize("kind", ["native", "grpcio", "gthread"])
def test_the_logs_name_the_client_and_its_proxy(models, tmp_path, kind):
    (tmp_path / "control").write_text("secret\n")
    settings = {
        "access_log": True,
        "log_format": "json",
        "control_token_file": str(tmp_path / "control"),
    }
    settings |= {"worker_class": "gthread"} if kind == "gthread" else {"grpc_server": kind}
    with Server(models, **settings) as running:
        token = {"Authorization": "Bearer secret"}
        infer = f"{running.url}/v2/models/double/infer"
        load = f"{running.url}/v2/repository/models/double/load"
        requests.post(
            infer, data=double_body(), headers=FORWARDED | token | {"X-Request-ID": "a"}, timeout=30
        )
        requests.post(load, headers=FORWARDED | {"X-Request-ID": "b"}, timeout=30)
        requests.post(load, headers={"Forwarded": f"for={CLIENT}", "X-Request-ID": "c"}, timeout=30)
        requests.get(running.url + "/v2", headers={"X-Request-ID": "d"}, timeout=30)
        metadata = [(name.lower(), value) for name, value in (FORWARDED | token).items()]
        with grpc.insecure_channel(running.grpc) as channel:
            stub_infer(channel)(
                row_request("double"), metadata=[*metadata, ("x-request-id", "e")], timeout=30
            )
            call(
                channel,
                "RepositoryModelLoad",
                model_name="double",
                metadata=[*metadata, ("x-request-id", "f")],
            )
        seen = {}
        wait_until(
            lambda: (
                seen.update(
                    {one["request_id"]: one for one in records(running, "gunicorn.access", 1)}
                )
                or set("abcdef") <= set(seen)
            )
        )
        for name in "abcef":
            assert (seen[name]["peer"], seen[name]["proxy"]) == (CLIENT, "127.0.0.1"), name
        assert seen["d"]["peer"] == "127.0.0.1" and "proxy" not in seen["d"]
        digests = {name: seen[name]["token_digest"] for name in "abcdef"}
        assert digests == dict.fromkeys("aef", "2bb80d53") | dict.fromkeys("bcd", "")
        audited = {one["request_id"]: one for one in records(running, "ksrv.audit", 3)}
        for name in "bcf":
            assert (audited[name]["peer"], audited[name]["proxy"]) == (CLIENT, "127.0.0.1"), name
        assert "secret" not in running.log


def test_untrusted_proxy_cannot_name_a_client(models):
    settings = {"access_log": True, "log_format": "json", "forwarded_allow_ips": ["10.0.0.0/8"]}
    with Server(models, grpc="off", **settings) as running:
        requests.get(running.url + "/v2", headers=FORWARDED | {"X-Request-ID": "mine"}, timeout=30)

        def mine():
            found = records(running, "gunicorn.access", 1)
            return [one for one in found if one["request_id"] == "mine"]

        wait_until(mine)
        [record] = mine()
        assert record["peer"] == "127.0.0.1" and "proxy" not in record


def test_a_trusted_proxy_on_a_unix_socket_is_not_this_machine(models, tmp_path):
    """The proxy names its caller, who may be anywhere, so no control call is allowed."""
    path = tmp_path / "http.sock"
    settings = {"access_log": True, "log_format": "json"}
    with Server(models, http=f"unix:{path}", grpc="off", **settings) as running:
        for lines, status in (("", b"200"), (f"X-Forwarded-For: {CLIENT}\r\n", b"403")):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                head = "POST /v2/repository/models/double/load HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                connection.sendall(f"{head}Content-Length: 0\r\n{lines}\r\n".encode())
                assert connection.recv(64).split()[1] == status
        found = records(running, "ksrv.audit", 2)
        assert [(one["peer"], one.get("proxy"), one["outcome"]) for one in found] == [
            ("", None, "200"),
            (CLIENT, "unix", "403"),
        ]

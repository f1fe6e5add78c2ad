import os
import socket

import pytest

from ksrv.errors import Forbidden, Unauthenticated
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings, SettingsError

HERE = {"peer": "127.0.0.1", "forwarded": False, "origin": None, "host": "localhost:8080"}


@pytest.fixture
def files(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("# rotation\nold-token\nnew-token\n\n")
    control = tmp_path / "control"
    control.write_text("control-token\n")
    return {"token_file": str(tokens), "control_token_file": str(control)}


def test_a_token_behind_a_byte_order_mark_is_that_token(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_bytes(b"\xef\xbb\xbfold-token\r\n")
    Access(ServerSettings(token_file=str(tokens))).check("Bearer old-token")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bytes(4096), "control character"),
        (b"good\nto\x00ken\n", "token 2 of .*control character"),
        (b"x" * (5 << 20), "larger than 4 MiB"),
        (None, "holds no token; write a token in each line"),
    ],
    ids=["zeros", "a zero", "another file", "a pipe without a writer"],
)
@pytest.mark.timeout(30)
def test_what_is_no_file_of_tokens_is_refused_at_once(tmp_path, content, says):
    tokens = tmp_path / "tokens"
    if content is None:
        os.mkfifo(tokens)
    else:
        tokens.write_bytes(content)
    with pytest.raises(SettingsError, match=says):
        Access(ServerSettings(token_file=str(tokens)))


def test_control_calls_without_a_control_token_are_for_this_machine_only(files):
    access = Access(ServerSettings())
    access.check_control(None, **HERE)
    access.check_control(None, **HERE | {"peer": ""})
    access.check_control(None, **HERE | {"peer": "::1"})
    for elsewhere in (
        {"peer": "10.0.0.7"},
        {"peer": "127.0.0.6"},  # Istio's proxy
        {"peer": "::ffff:127.0.0.6"},
        {"forwarded": True},
        {"forwarded": True, "peer": ""},
    ):
        with pytest.raises(Forbidden, match="programs on this machine"):
            access.check_control(None, **HERE | elsewhere)


def test_the_servers_own_page_may_change_the_repository(files):
    own = {"origin": "http://127.0.0.1:8080", "host": "127.0.0.1:8080"}
    access = Access(ServerSettings())
    access.check_control(None, **HERE | own)
    access.check_control(None, **HERE | {"origin": "https://localhost", "host": "localhost"})
    for other in (
        own | {"origin": "http://127.0.0.1:3000"},  # another program's page on this machine
        {"origin": "http://evil.example", "host": "evil.example"},  # a name that leads here
        {"origin": "null", "host": ""},
    ):
        with pytest.raises(Forbidden, match="web pages"):
            access.check_control(None, **HERE | other)
    with_token = Access(ServerSettings(**files))
    public = {"origin": "https://models.example", "host": "models.example"}
    with_token.check_control("Bearer control-token", **HERE | public)
    with pytest.raises(Unauthenticated, match="control token"):
        with_token.check_control(None, **HERE | public)


def test_an_origin_of_an_asterisk_is_no_allowed_page():
    access = Access(ServerSettings(allowed_origins=("*", "http://localhost:3000")))
    access.check_control(None, **HERE | {"origin": "http://localhost:3000"})
    with pytest.raises(Forbidden, match="web pages"):
        access.check_control(None, **HERE | {"origin": "*"})


def test_a_token_file_that_is_missing_or_empty_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match=r"'token_file'.*cannot be read"):
        Access(ServerSettings(token_file=str(tmp_path / "none")))
    empty = tmp_path / "empty"
    empty.write_text("\n# nothing\n")
    with pytest.raises(SettingsError, match="holds no token"):
        Access(ServerSettings(token_file=str(empty)))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "a.LocalHost",
        "127.0.0.1.",
        "[fe80::1%25eth0]:8080",
        socket.gethostname().upper() + ":8080",
        "models.localhost:80",
        "127.0.0.1:8080",
        "10.0.0.7",
        "[::1]",
        "[::1]:8080",
        socket.gethostname(),
    ],
)
def test_a_host_of_this_machine_is_let_in(host):
    access = Access(ServerSettings())
    access.check_control(None, **HERE | {"host": host})
    access.check_host(host, peer="127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "évil.example",
        "\udcff",
        "[::1",
        "[]",
        "[evil.example]:80",
        "x" * 300,
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[evil]",
        "ksrv",
        "ksrv.:80",
        "evil.localhost.example",
        "1::evil:80",
    ],
)
def test_a_rebound_name_is_no_host_of_this_machine(host):
    access = Access(ServerSettings())
    with pytest.raises(Forbidden, match=r"Host .* is not this machine, so control calls"):
        access.check_control(None, **HERE | {"host": host})
    access.check_host(host, peer="")  # no browser calls over a unix socket
    if "." not in host:
        access.check_host(host, peer="127.0.0.1")  # nobody can register such a name
        return
    with pytest.raises(Forbidden, match=r"Host .* is not this machine, so the call"):
        access.check_host(host, peer="127.0.0.1")

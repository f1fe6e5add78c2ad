import socket

import pytest

from ksrv.server.addresses import (
    Address,
    AddressError,
    check_free,
    is_loopback,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), "127.0.0.1:8080"),
        ("[::1]:0", Address("::1", 0), "[::1]:0"),
        (":9000", Address("0.0.0.0", 9000), "0.0.0.0:9000"),
        ("localhost:1", Address("localhost", 1), "localhost:1"),
        ("unix:/run/k.sock", Address(path="/run/k.sock"), "unix:/run/k.sock"),
    ],
)
def test_addresses_are_read_and_written(text, address, shown):
    assert parse_address(text, "http") == address
    assert str(address) == shown


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:port", "h:65536", "::1:80", "unix:"])
def test_other_texts_name_the_setting(text):
    with pytest.raises(AddressError, match="setting 'grpc'"):
        parse_address(text, "grpc")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_judged_without_a_name_service(host, own):
    assert is_loopback(host) is own


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (
            Address(host="192.0.2.1", port=0),
            r"cannot be listened on: .*; this machine has no such address",
        ),
        (
            Address(path="/nowhere/x.sock"),
            "cannot be listened on: No such file or directory; make the folder",
        ),
        (
            Address(path="/" + "ä" * 54),
            "the path of the unix socket has 109 bytes, and the system takes 107: .*; choose a shorter path",
        ),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_what_to_do(address, says):
    with pytest.raises(AddressError, match=f"setting 'http': .*{says}"):
        check_free(address, "http")


def test_a_unix_path_may_be_as_long_as_the_system_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = "s" * 107
    check_free(Address(path=path), "http")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(path)

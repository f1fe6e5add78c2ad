"""The list of addresses: renewal, expiry, withdrawal."""

from types import SimpleNamespace

import pytest

from ksrv.ray import address_list
from ksrv.ray.address_list import FORGET_SECONDS, WITHDRAWN_SECONDS, Address, AddressList
from ksrv.ray.replica import prometheus_targets, reachable


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(address_list.time, "monotonic", lambda: now.time)
    return now


def address(replica, port=1):
    return Address(replica, "node", f"127.0.0.1:{port}", "")


def test_addresses_that_are_renewed_stay(clock):
    listed = AddressList()
    assert listed.current() == []
    listed.renew(address("b"))
    listed.renew(address("a"))
    clock.time += FORGET_SECONDS
    listed.renew(address("a", port=2))
    assert listed.current() == [address("a", port=2), address("b")]
    clock.time += 0.1
    assert listed.current() == [address("a", port=2)]
    listed.renew(address("b"))
    assert listed.current() == [address("a", port=2), address("b")]


def test_a_withdrawn_address_does_not_return(clock):
    listed = AddressList()
    listed.renew(address("a"))
    listed.withdraw("a")
    listed.withdraw("never listed")
    listed.renew(address("a"))  # a renewal that was on its way
    assert listed.current() == []


@pytest.mark.parametrize(
    ("address", "host", "expected"),
    [
        ("127.0.0.1:5", "10.0.0.7", "127.0.0.1:5"),
        ("0.0.0.0:5", "10.0.0.7", "10.0.0.7:5"),
        ("[::]:5", "fd00::7", "[fd00::7]:5"),
        ("", "10.0.0.7", ""),
    ],
)
def test_a_wildcard_is_called_by_the_nodes_address(address, host, expected):
    assert reachable(address, host) == expected


def test_withdrawn_addresses_are_forgotten(clock):
    listed = AddressList()
    for number in range(1000):
        listed.withdraw(f"replica {number}")
        clock.time += WITHDRAWN_SECONDS / 10
    assert len(listed._withdrawn) <= 12
    listed.renew(address("replica 999"))
    assert listed.current() == []


def test_prometheus_targets_are_listed():
    plain, grpc_only, tls = (
        Address("a", "n", "10.0.0.1:8080", ""),
        Address("b", "n", "", "10.0.0.1:9000"),
        Address("c", "m", "[fd00::1]:8443", "", tls=True),
    )
    assert prometheus_targets([plain, grpc_only, tls]) == [
        {
            "targets": ["10.0.0.1:8080"],
            "labels": {"__scheme__": "http", "replica": "a", "node": "n"},
        },
        {
            "targets": ["[fd00::1]:8443"],
            "labels": {"__scheme__": "https", "replica": "c", "node": "m"},
        },
    ]

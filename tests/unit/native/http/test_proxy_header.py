"""PROXY protocol headers: each fault has a sentence, and networks are validated."""

import pytest

from ksrv._native.http.proxy_header import ProxyRules
from tests.support.native.wire_parsers import read_proxy_header
from tests.support.wire.proxy_headers import SIGNATURE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PROXY " + b"x" * 101, "does not end with CR LF within 107 bytes"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", "does not end with CR LF"),
        (
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            "is not PROXY, a protocol, two addresses and two ports",
        ),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n", "two ports"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2" + b" 3" * 30 + b"\r\n", "two ports"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "another protocol"),
        (b"PROXY TCP4 ::1 ::1 1 2\r\n", "an address that does not match"),
        (b"PROXY TCP4 1.2.3.4\0x 1.2.3.4 1 2\r\n", "an address that does not match"),
        (b"PROXY TCP4 " + b"1" * 80 + b" 1.2.3.4 1 2\r\n", "an address that does not match"),
        (b"PROXY TCP4 ::1 1.2.3.4 1 2\r\n", "an address that does not match"),
        (b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n", "an address that does not match"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 4294967297\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1: 2\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1/ 2\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4  2\r\n", "a port that is not a number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 x\r\n", "a port that is not a number"),
        (SIGNATURE + b"\x11\x11\x00\x0c", "version is not 2"),
        (SIGNATURE + b"\x22\x11\x00\x0c", "neither LOCAL nor PROXY"),
        (SIGNATURE + b"\x21\x12\x00\x0c", "another protocol"),
        (SIGNATURE + b"\x21\x01\x00\x0c", "another protocol"),
        (SIGNATURE + b"\x21\x41\x00\xd8", "another protocol"),
        (SIGNATURE + b"\x21\x11\x00\x0b", "too short"),
        (SIGNATURE + b"\x21\x21\x00\x23", "too short"),
        (SIGNATURE + b"\x21\x11\x0f\xf1", "longer than 4096 bytes"),
    ],
)
def test_malformed_headers_are_refused_with_the_cause(data, why):
    assert why in read_proxy_header(data)


@pytest.mark.parametrize("address", ["x", "1.2.3", "10.0.0.0/33"])
def test_invalid_networks_are_refused(address):
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 network"):
        ProxyRules("auto", [address])

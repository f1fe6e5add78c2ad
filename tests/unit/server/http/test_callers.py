"""The client's address behind proxies: the last address that a trusted proxy has written."""

import pytest

from ksrv.server.http.callers import TrustedProxies, token_digest
from ksrv.server.settings import ServerSettings, SettingsError

TRUSTED = ("127.0.0.1", "::1", "10.0.0.0/8", "fd00::/8")


def caller(peer, trusted=TRUSTED, **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return TrustedProxies(trusted).caller(peer, given)


@pytest.mark.parametrize(
    ("peer", "given", "expected"),
    [
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("::1", "192.0.2.7", "192.0.2.7"),
        ("::ffff:127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # no trusted proxy
        ("127.0.0.6", "198.51.100.1", "127.0.0.6"),
        (
            "127.0.0.1",
            "198.51.100.1, 192.0.2.7",
            "192.0.2.7",
        ),  # the client has written the first address
        ("127.0.0.1", "198.51.100.1,192.0.2.7,10.1.1.1, 10.2.2.2", "192.0.2.7"),
        ("127.0.0.1", "10.1.1.1,10.2.2.2", "10.1.1.1"),
        ("127.0.0.1", "198.51.100.1, unknown, 10.2.2.2", "10.2.2.2"),
        ("127.0.0.1", "198.51.100.1, , 10.2.2.2", "10.2.2.2"),
        ("127.0.0.1", "192.0.2.7:5100", "192.0.2.7"),
        ("127.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("127.0.0.1", "[2001:db8::7]:5100", "2001:db8::7"),
        ("127.0.0.1", "[2001:DB8:0::7]", "2001:db8::7"),
        ("127.0.0.1", "198.51.100.1, fd00::9", "198.51.100.1"),
        ("127.0.0.1", 'evil"} quote', "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("", "192.0.2.7", ""),  # a unix socket that is not named
    ],
)
def test_client_is_the_last_untrusted_address(peer, given, expected):
    found = caller(peer, x_forwarded_for=given)
    assert found == ({"peer": expected} | ({} if expected == peer else {"proxy": peer}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("for=192.0.2.7", "192.0.2.7"),
        ("For=192.0.2.7;proto=https;by=10.0.0.1", "192.0.2.7"),
        ("proto=http; for = 192.0.2.7", "192.0.2.7"),
        ('for="192.0.2.7:5100"', "192.0.2.7"),
        ('for="[2001:db8::7]:5100"', "2001:db8::7"),
        ('for=198.51.100.1, for="[2001:db8::7]"', "2001:db8::7"),
        ("for=198.51.100.1, for=192.0.2.7, for=10.1.1.1", "192.0.2.7"),
        ('for=198.51.100.1;secret="a, for=9.9.9.9", for=10.1.1.1', "198.51.100.1"),
        ("for=198.51.100.1, for=unknown", "127.0.0.1"),
        ("for=198.51.100.1, for=_hidden, for=10.1.1.1", "10.1.1.1"),
        ("by=10.0.0.1", "127.0.0.1"),
        ('for="' + "\\\\" * 5000, "127.0.0.1"),
        ('"\\"' * 5000 + ",for=192.0.2.7", "192.0.2.7"),
    ],
)
def test_forwarded_header_names_the_last_untrusted_address(given, expected):
    assert caller("127.0.0.1", forwarded=given)["peer"] == expected


def test_x_forwarded_for_precedes_forwarded():
    both = {"x_forwarded_for": "192.0.2.7", "forwarded": "for=198.51.100.1"}
    assert caller("127.0.0.1", **both)["peer"] == "192.0.2.7"


def test_unix_sockets_and_everybody_are_trusted_by_name():
    assert caller("", ("unix",), x_forwarded_for="192.0.2.7") == {
        "peer": "192.0.2.7",
        "proxy": "unix",
    }
    assert caller("127.0.0.1", ("unix",), x_forwarded_for="192.0.2.7") == {"peer": "127.0.0.1"}
    assert caller("198.51.100.1", ("*",), x_forwarded_for="9.9.9.9, 8.8.8.8")["peer"] == "9.9.9.9"
    assert caller("", ("*",), x_forwarded_for="9.9.9.9")["peer"] == "9.9.9.9"
    assert caller("127.0.0.1", (), x_forwarded_for="9.9.9.9") == {"peer": "127.0.0.1"}


def test_invalid_trusted_address_is_a_settings_error():
    with pytest.raises(SettingsError, match=r"'forwarded_allow_ips': expected addresses.*'nginx'"):
        TrustedProxies.of(ServerSettings(forwarded_allow_ips=("nginx",)))


def test_a_token_shows_by_the_beginning_of_its_digest():
    assert token_digest("Bearer secret") == token_digest("bearer  secret ") == "2bb80d53"
    assert token_digest("Basic secret") == token_digest("Bearer ") == token_digest(None) == ""

"""The settings of gunicorn that ksrv refuses."""

import gunicorn
import pytest
from gunicorn.config import Config

from ksrv.server.launch import gunicorn_checks as checks
from ksrv.server.settings import SettingsError


def configured(**settings):
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    return cfg


def test_another_major_release_is_refused(monkeypatch):
    monkeypatch.setattr(gunicorn, "version_info", (28, 0, 0))
    with pytest.raises(SettingsError, match=r"needs gunicorn 27, .*install 'gunicorn>=27,<28'"):
        checks.check_gunicorn()


def pre_request(worker, req):
    """A user's hook."""


def post_request(worker, req, environ, resp):
    """A second hook."""


def ssl_context(config, default):
    """A hook for TLS."""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pre_request": pre_request}, "'pre_request'"),
        ({"post_request": post_request}, "'post_request'"),
        ({"ssl_context": ssl_context}, "'ssl_context'.* name the files"),
        ({"http_protocols": "h2,h1"}, "'http_protocols'.* REST over HTTP/1.1"),
        ({"http2_cleartext": "upgrade"}, "'http2_cleartext'.* REST over HTTP/1.1"),
        ({"protocol": "uwsgi"}, "'protocol'"),
        ({"permit_obsolete_folding": True}, "'permit_obsolete_folding'.* RFC 9112"),
        ({"permit_unconventional_http_method": True}, "'permit_unconventional_http_method'"),
        ({"permit_unconventional_http_version": True}, "'permit_unconventional_http_version'"),
        ({"casefold_http_method": True}, "'casefold_http_method'"),
        ({"strip_header_spaces": True}, "'strip_header_spaces'"),
        ({"header_map": "dangerous"}, "'header_map'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_http_server_cannot_honour_is_refused_by_name(settings, words):
    with pytest.raises(SettingsError, match=f"gunicorn's setting {words}"):
        checks.check_settings(configured(**settings))


@pytest.mark.parametrize("prefix", ["", "/a", "/a/b.c-d_e~", "/" + "a" * 127])
def test_mount_prefixes(prefix):
    checks.check_mount_prefix(prefix)


@pytest.mark.parametrize(
    "prefix",
    ["a", "/", "/a/", "//a", "/a//b", "/a b", "/..", "/a/.", "/%41", "/ä", "/" + "a" * 128],
)
def test_what_is_no_mount_prefix(prefix):
    with pytest.raises(SettingsError, match=r"'mount_prefix'.* expected a path such as /models"):
        checks.check_mount_prefix(prefix)


@pytest.mark.parametrize("address", ["", "x", "10.0.0.0/33", "127.0.0.1:80"])
def test_what_is_no_address_of_a_proxy(address):
    with pytest.raises(SettingsError, match="'proxy_allow_ips'"):
        checks.check_proxies(["::1", address])


def test_tls_without_openssl_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(checks, "why_no_tls", lambda: "libssl.so.3 cannot be loaded")
    checks.check_settings(configured())
    with pytest.raises(SettingsError, match=r"libssl\.so\.3 cannot be loaded; install it \("):
        checks.check_settings(configured(certfile=__file__))

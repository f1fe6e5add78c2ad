"""The gunicorn features that ksrv needs, and the settings and worker classes that it refuses."""

import gunicorn
import pytest
from gunicorn import arbiter, glogging
from gunicorn.config import Config
from gunicorn.workers import base

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


NEEDED = {
    arbiter.Arbiter: (
        *("APP_LOAD_ERROR", "LISTENERS", "WORKERS", "WORKER_BOOT_ERROR", "kill_worker"),
        *("maybe_promote_master", "reload", "spawn_worker", "spawn_workers", "stop"),
        *("START_CTX", "cfg", "log", "master_pid", "reexec_pid"),
    ),
    base.Worker: (
        *("handle_exit", "handle_quit", "init_process", "notify", "run", "alive", "booted", "cfg"),
        *("log", "max_requests", "ppid", "sockets"),
    ),
    Config: (
        "address",
        "is_ssl",
        "set",
        "worker_class",
        "worker_class_str",
        "env_orig",
        "settings",
    ),
    glogging.Logger: ("_set_handler", "access", "atoms_wrapper_class", "info"),
}
"""The names of gunicorn's classes that ksrv overrides, calls or reads."""


def is_set(owner, name):
    """Whether a constructor of a class, or what it calls of the class, sets an attribute."""
    codes = [
        getattr(vars(one).get(method), "__code__", None)
        for one in owner.__mro__
        for method in ("__init__", "setup")
    ]
    return any(name in code.co_names for code in codes if code is not None)


@pytest.mark.parametrize("owner", NEEDED)
def test_gunicorn_has_the_names_that_ksrv_needs(owner):
    missing = [name for name in NEEDED[owner] if not (hasattr(owner, name) or is_set(owner, name))]
    assert not missing


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

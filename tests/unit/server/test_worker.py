"""The worker's use of gunicorn's internals, and when it leaves the native HTTP server out."""

import hashlib
import inspect
import os
import textwrap

import gunicorn
import pytest
from gunicorn import sock
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.http import message, parser, unreader
from gunicorn.workers import gthread

from ksrv._native.http.request_head import classify_head
from ksrv.server import tls, worker
from ksrv.server.threaded import native_choice
from tests.support.wire.http_heads import INFER

READ_INTERNALS = {
    Arbiter.reload: "5928b1",
    Arbiter.stop: "17681d",
    Arbiter.reap_workers: "edfafe",
    Arbiter.spawn_worker: "7e62b8",
    Arbiter.spawn_workers: "a907c1",
    Arbiter.manage_workers: "ba4156",
    sock.ssl_context: "069b9e",
    sock._get_alpn_protocols: "8e380b",
    gthread.ThreadWorker.handle_quit: "86cdb2",
    parser.Parser.finish_body: "76ceb1",
    unreader.Unreader.take_buffered: "51ceea",
    gthread.TConn.__init__: "90ab90",
    gthread.TConn.init: "33ee8c",
    gthread.PollableMethodQueue.defer: "cdf2d7",
    gthread.PollableMethodQueue.run_callbacks: "3b9904",
    gthread.ThreadWorker.__init__: "a53cfb",
    gthread.ThreadWorker.init_process: "091d90",
    gthread.ThreadWorker.handle_exit: "2476ee",
    gthread.ThreadWorker.set_accept_enabled: "33822c",
    gthread.ThreadWorker.enqueue_req: "4c7f48",
    gthread.ThreadWorker.run: "f72655",
    gthread.ThreadWorker.wait_for_and_dispatch_events: "ff4095",
    gthread.ThreadWorker.finish_request: "d18d79",
    gthread.ThreadWorker.handle: "49edcc",
    gthread.ThreadWorker.handle_request: "1e7732",
    gthread.ThreadWorker._keepalive_after: "c9a49b",
    message.Message.__init__: "cf4845",
    message.Message.parse_headers: "aea029",
    message.Message.set_body_reader: "b4d123",
    message.Message.should_close: "35cbfc",
    message.HeaderPolicy._apply_header_policy: "f796dd",
    message.Request._parse_python: "848fef",
    message.Request.parse_request_line: "fe4af7",
    parser.Parser.__next__: "682a9b",
    unreader.Unreader.unread: "11f279",
    unreader.Unreader.read: "2b1f5f",
}
"""What the worker and the request-head classifier were written against, with a hash of its source.

A change here is read before the number is: does the worker still override, call and assume the
right things, and is everything that the request-head classifier accepts still framed the same way?
"""


def source_hash(function):
    source = textwrap.dedent(inspect.getsource(function))
    return hashlib.sha256(source.encode()).hexdigest()[:6]


@pytest.mark.parametrize("function", READ_INTERNALS, ids=lambda function: function.__qualname__)
def test_the_internals_in_use_are_those_that_were_read(function):
    assert source_hash(function) == READ_INTERNALS[function]


def test_nothing_is_missing_of_this_gunicorn():
    assert native_choice.missing_internals() == []


def test_another_major_release_is_not_known(monkeypatch):
    monkeypatch.setattr(gunicorn, "version_info", (28, 0, 0))
    assert native_choice.missing_internals()[0].startswith("gunicorn 27 (this is ")


def test_a_missing_name_is_named(monkeypatch):
    monkeypatch.delattr(gthread.PollableMethodQueue, "defer")
    assert native_choice.missing_internals() == ["PollableMethodQueue.defer"]


def test_a_missing_attribute_is_named(monkeypatch):
    """Another gunicorn's constructor, which sets less."""
    monkeypatch.setattr(gthread.ThreadWorker, "__init__", lambda self: None)
    assert "ThreadWorker.poller" in native_choice.missing_internals()


class App:
    engine = object()


class OtherApp:
    pass


def configured(**settings):
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    return cfg


def test_the_http_server_stands_in_front_of_an_ordinary_worker():
    assert native_choice.why_not_native(configured(), App()) is None
    assert native_choice.why_not_native(configured(certfile=__file__), App()) is None


def test_python_does_tls_where_openssl_is_missing(monkeypatch):
    monkeypatch.setattr(tls, "why_no_tls", lambda: "libssl.so.3 cannot be loaded")
    assert native_choice.why_not_native(configured(), App()) is None
    encrypted = configured(certfile=__file__)
    told = "TLS without OpenSSL: libssl.so.3 cannot be loaded"
    assert native_choice.why_not_native(encrypted, App()) == told
    encrypted.set("worker_class", "ksrv.server.worker:KsrvWorker")
    assert worker.tls_library(encrypted).endswith(f"in Python on threads: {told}")


def pre_request(worker, req):
    """A user's hook."""


def ssl_context(config, default):
    """Another one."""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"certfile": __file__, "ssl_context": ssl_context}, "the hook ssl_context"),
        ({"certfile": __file__, "http_protocols": "h2,h1"}, "h2 in http_protocols"),
        ({"proxy_protocol": "v1"}, "proxy_protocol"),
        ({"http2_cleartext": "upgrade"}, "http2_cleartext"),
        ({"pre_request": pre_request}, "pre_request"),
        ({"secure_scheme_headers": {f"X-{n}": "on" for n in range(9)}}, "secure_scheme_headers"),
    ],
    ids=["tls hook", "tls h2", "proxy protocol", "http2", "hook", "scheme headers"],
)
def test_what_leaves_the_http_server_away(settings, words):
    assert words in native_choice.why_not_native(configured(**settings), App())


def test_another_app_and_a_mounted_one_leave_the_http_server_away(monkeypatch):
    assert native_choice.why_not_native(configured(), OtherApp()) == "the app is not ksrv's"
    monkeypatch.setitem(os.environ, "SCRIPT_NAME", "/sub")
    assert native_choice.why_not_native(configured(), App()) == "SCRIPT_NAME is set"


def plain(cfg, head=16384, body=1000):
    rules = worker.head_rules(cfg, body=body, head=head)
    return classify_head(INFER, rules).verdict == "native"


def test_gunicorns_limits_bound_what_is_plain():
    line = INFER.index(b"\r\n")
    assert plain(configured())
    assert plain(configured(limit_request_line=0))
    assert plain(configured(limit_request_line=line))
    assert not plain(configured(limit_request_line=line - 1))
    assert plain(configured(limit_request_fields=7))
    assert not plain(configured(limit_request_fields=6))
    assert not plain(configured(limit_request_field_size=20))
    assert plain(configured(limit_request_field_size=0))
    assert not plain(configured(), head=100)
    assert not plain(configured(), body=4)

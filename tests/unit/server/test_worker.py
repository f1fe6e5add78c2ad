"""The worker: gunicorn's limits on heads, and its app."""

import pytest
from gunicorn.config import Config

from ksrv.limits import Limits
from ksrv.server import worker
from ksrv.server.settings import ServerSettings
from tests.support.native.wire_parsers import HeadRules, classify_head
from tests.support.wire.http_heads import INFER


def configured(**settings):
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    return cfg


@pytest.fixture(autouse=True)
def _rules_of_tests(monkeypatch):
    monkeypatch.setattr(worker, "HeadRules", HeadRules)


def plain(cfg, head=16384, body=1000):
    settings = ServerSettings(limits=Limits(head=head, body=body))
    rules = worker.head_rules(cfg, settings, own_hosts=False, mount="")
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

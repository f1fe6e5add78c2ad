"""Alert rules and panels over the pages of a live server that is brought into the state that each is about."""

import contextlib
import os
import re
import resource
import shutil
import signal
import threading

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import BROKEN, DOUBLE, SLOW, VECTOR, write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until
from tests.unit.deploy.promql import expressions, metric_names, rules
from tests.unit.deploy.promql_evaluation import Prometheus

pytestmark = pytest.mark.long

FAILING = """
from ksrv import BaseHandler


class Failing(BaseHandler):
    def inference(self, x):
        raise RuntimeError("no such weights")
"""

DYING = """
import os

from ksrv import BaseHandler


class Dying(BaseHandler):
    def inference(self, x):
        os._exit(3)
"""

HELD = """
import time
from pathlib import Path

from ksrv import BaseHandler


class Held(BaseHandler):
    def inference(self, x):
        here = Path(__file__).parent
        (here / "began").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
        return {"y": x}
"""

SCRAPE_SECONDS = 120
"""Prometheus' scrape interval: rates over five minutes see three scrapes."""

ENOUGH = 200
"""Refusals in that time that make more than one a second over five minutes."""


PATIENCE_SECONDS = 600
"""A request that is held waits for hundreds of others, on a machine that may have no time for any."""

CONNECTIONS = 8


class Watched:
    """A server with TLS and a token, and what Prometheus knows of it."""

    def __init__(self, server, certificate, models):
        self.server, self.models = server, models
        self._certificate = str(certificate)
        # Hundreds of handshakes take longer than what they are for.
        self.kept = requests.Session()
        self.prometheus = Prometheus(rules(), job="ksrv", instance="a")
        self._seconds = 0

    def call(self, path, token="secret", by=requests, **options):
        options["headers"] = {"Authorization": f"Bearer {token}"}
        method = "POST" if "json" in options else "GET"
        options |= {"verify": self._certificate, "timeout": PATIENCE_SECONDS}
        return by.request(method, self.server.url + path, **options)

    def infer(self, model, **options):
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        path = f"/v2/models/{model}/infer"
        return self.call(path, json={"inputs": [entry]}, **options).status_code

    def page(self):
        return self.call("/metrics").text

    def shows(self, sample):
        """Whether a sample is on the page; its braces hold some of the labels in order."""
        return re.search(sample, self.page(), re.M)

    def scrape(self, *, after=SCRAPE_SECONDS, answered=True):
        self._seconds += after
        self.prometheus.scrape(self._seconds, self.page() if answered else None)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alerts")
    models = folder / "models"
    plain = f"{VECTOR}warmup: false\n"
    write_model(models, "double", DOUBLE, plain)
    write_model(models, "failing", FAILING, plain)
    write_model(models, "dying", DYING, f"{plain}executor: process\n")
    write_model(models, "held", HELD, f"{plain}queue_size: 1\ntimeout_ms: 600000\n")
    write_model(models, "slow", SLOW, f"{plain}parameters: {{seconds: 1.2}}\ninstances: 4\n")
    write_model(models, "late", SLOW, f"{plain}parameters: {{seconds: 0.2}}\ntimeout_ms: 20\n")
    with serving(folder, models, days=1) as watched:
        yield watched


@contextlib.contextmanager
def serving(folder, models, *, days):
    key, certificate = self_signed(folder, days=days)
    (folder / "tokens").write_text("secret\n")
    settings = {"tls_cert": certificate, "tls_key": key, "token_file": folder / "tokens"}
    named = {name: str(path) for name, path in settings.items()}
    with Server(models, **named, max_connections=CONNECTIONS) as server:
        yield Watched(server, certificate, models)


# ---- one state for each alert -----------------------------------------------------------------


@contextlib.contextmanager
def lost(watched):
    watched.scrape()
    watched.scrape(answered=False)
    yield


@contextlib.contextmanager
def with_a_broken_model(watched):
    folder = write_model(watched.models, "broken", BROKEN, VECTOR)
    answer = watched.call("/v2/repository/models/broken/load", json={})
    assert answer.status_code >= 400
    watched.scrape()
    yield
    shutil.rmtree(folder)
    assert watched.call("/v2/repository/models/broken/unload", json={}).status_code == 200


@contextlib.contextmanager
def with_a_certificate_of_one_day(watched):
    watched.scrape()
    yield


def repeated(trouble):
    """Return the state of a trouble that lasts for two scrapes, after a scrape without it."""

    @contextlib.contextmanager
    def state(watched):
        watched.scrape()
        for _ in range(2):
            trouble(watched)
            watched.scrape()
        yield

    return state


def happened(trouble):
    """Return the state after a trouble that is over when it is seen for the first time."""

    @contextlib.contextmanager
    def state(watched):
        watched.scrape()
        trouble(watched)
        watched.scrape()
        yield

    return state


def fail(watched):
    assert watched.infer("failing") == 500


def miss_deadlines(watched):
    assert watched.infer("late") == 504


def be_slow(watched):
    assert watched.infer("slow") == 200


def call_without_a_token(watched):
    for _ in range(ENOUGH):
        answer = watched.call("/v2/models/double", token="wrong", by=watched.kept)
        assert answer.status_code == 401


def kill_handlers(watched):
    def ended_three_times():
        watched.infer("dying")
        return watched.shows(r'^ksrv_instance_restarts_total\{model="dying",.*\} [3-9]')

    wait_until(ended_three_times, 120)


def kill_the_worker(watched):
    before = float(watched.shows(r"^ksrv_server_worker_restarts_total (\S+)")[1])
    os.kill(children(watched.server.pid)[0], signal.SIGKILL)

    def replaced():
        try:
            return watched.shows(rf"^ksrv_server_worker_restarts_total {before + 1}")
        except requests.ConnectionError:  # of the killed worker
            return False

    wait_until(replaced, 60)


@contextlib.contextmanager
def with_a_reload_in_vain(watched):
    watched.scrape()
    folder = write_model(watched.models, "broken", BROKEN, VECTOR)
    os.kill(watched.server.pid, signal.SIGHUP)
    wait_until(lambda: watched.shows("^ksrv_last_reload_successful 0"), 60)
    watched.scrape(after=10)
    yield
    shutil.rmtree(folder)
    reload_well(watched)


def reload_well(watched):
    """Reload, and wait until no worker of before holds a request of what follows."""
    before = children(watched.server.pid)
    os.kill(watched.server.pid, signal.SIGHUP)

    def done():
        now = children(watched.server.pid)
        return len(now) == 1 and not set(now) & set(before)

    wait_until(done, tell=lambda: watched.server.log)
    assert watched.shows("^ksrv_last_reload_successful 1")


@contextlib.contextmanager
def with_a_full_queue(watched):
    """One request runs, one waits, and all others are refused."""
    watched.scrape()
    began, go = (watched.models / "held" / name for name in ("began", "go"))
    for file in (began, go):
        file.unlink(missing_ok=True)
    running, waiting = (threading.Thread(target=watched.infer, args=("held",)) for _ in range(2))
    try:
        running.start()
        wait_until(began.exists)
        waiting.start()
        waits = r'^ksrv_pending_requests\{model="held",.*\} 1'
        wait_until(lambda: watched.shows(waits), tell=watched.page)
        for _ in range(2):
            for _ in range(ENOUGH):
                assert watched.infer("held", by=watched.kept) == 503
            watched.scrape()
        yield
    finally:
        go.touch()
        running.join(60)
        waiting.join(60)


@contextlib.contextmanager
def with_no_room_for_connections(watched):
    """Each connection that there may be carries a request, so that none gives way to another."""

    def call():
        # A connection whose request has not come yet does give way.
        with contextlib.suppress(requests.ConnectionError):
            watched.infer("slow")

    watched.scrape()
    callers = [threading.Thread(target=call) for _ in range(CONNECTIONS + 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    watched.scrape()
    yield


@contextlib.contextmanager
def with_a_full_log(watched):
    """The file of the log takes no more, as on a full disk."""
    worker = children(watched.server.pid)[0]
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    watched.scrape()
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        assert watched.infer("failing") == 500
    finally:
        resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
    watched.scrape()
    yield


STATES = {
    "KsrvDown": lost,
    "KsrvModelNotReady": with_a_broken_model,
    "KsrvCertificateEnds": with_a_certificate_of_one_day,
    "KsrvHandlerFails": repeated(fail),
    "KsrvDeadlinesMissed": repeated(miss_deadlines),
    "KsrvSlow": repeated(be_slow),
    "KsrvUnauthenticatedCallers": repeated(call_without_a_token),
    "KsrvOverloaded": with_a_full_queue,
    "KsrvInstanceRestarts": happened(kill_handlers),
    "KsrvNoMoreConnections": with_no_room_for_connections,
    "KsrvLosesLogLines": with_a_full_log,
    "KsrvReloadFailed": with_a_reload_in_vain,
    "KsrvWorkerRestarts": happened(kill_the_worker),
}


ALERTS = [rule for rule in rules() if "alert" in rule]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_live_server_in_trouble_raises_its_alert(watched, rule):
    with STATES[rule["alert"]](watched):
        found = watched.prometheus.query(rule["expr"])
    assert found, watched.page()
    shown = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
    assert all(set(shown) <= set(dict(labels)) for labels in found)


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory):
    """Half an hour of a healthy server: mistakes of clients, a reload, and a model that is unloaded and loaded."""
    folder = tmp_path_factory.mktemp("untroubled")
    models = folder / "models"
    write_model(models, "double", DOUBLE, f"{VECTOR}executor: process\n")
    with serving(folder, models, days=90) as watched:
        for minute in range(0, 30, SCRAPE_SECONDS // 60):
            assert watched.infer("double") == 200
            if minute == 10:
                assert watched.infer("unknown") == 404
                assert watched.call("/v2/models/double", token="wrong").status_code == 401
                reload_well(watched)
            if minute == 20:
                for action in ("unload", "load"):
                    path = f"/v2/repository/models/double/{action}"
                    assert watched.call(path, json={}).status_code == 200
            watched.scrape()
        yield watched


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_server_without_trouble_raises_no_alert(untroubled, rule):
    assert not untroubled.prometheus.query(rule["expr"]), untroubled.page()


@pytest.mark.parametrize(
    "alert",
    [
        "KsrvHandlerFails",
        "KsrvDeadlinesMissed",
        "KsrvOverloaded",
        "KsrvInstanceRestarts",
        "KsrvDown",
    ],
)
def test_an_alert_ends_with_the_trouble(watched, alert):
    [expression] = [rule["expr"] for rule in ALERTS if rule["alert"] == alert]
    for _ in range(6):
        assert watched.infer("double") == 200
        watched.scrape()
    assert not watched.prometheus.query(expression)


def use_everything(watched):
    """Do what the panels show, beside what tests of alerts have done."""
    assert watched.infer("double") == 200
    assert watched.infer("failing") == 500
    assert watched.infer("unknown") == 404
    assert watched.call("/v2/models/double", token="wrong").status_code == 401


def test_every_metric_that_is_named_is_exported_and_every_panel_shows_something(watched):
    use_everything(watched)
    with with_a_full_queue(watched):
        pass
    use_everything(watched)
    watched.scrape()
    with with_a_reload_in_vain(watched):
        pass
    watched.scrape(after=10)
    exported = set(re.findall(r"^(\w+)[{ ]", watched.page(), re.M))
    assert {name: where for name, where in metric_names().items() if name not in exported} == {}
    for where, text in expressions():
        if where in STATES:
            continue
        found = watched.prometheus.query(text)
        assert found, (where, text)
        by = re.search(r"\bby \(([^)]*)\)", text)
        wanted = set(by[1].replace(" ", "").split(",")) - {"le"} if by else set()
        assert all(wanted <= set(dict(labels)) for labels in found), (where, text)

"""Every route x method x caller x way to write its path: who is let through is decided by the route.

The routes are those of the app itself, so that one that is added is walked too. What a route needs is
said here once more, by its template, and compared with what a real server does.
"""

import http.client
import itertools
import re

import falcon
import pytest
from falcon import inspect, testing

from ksrv.server.app import make_app
from ksrv.server.credentials import Access
from ksrv.server.rest.route_guard import GuardedRouter
from ksrv.server.settings import ServerSettings
from ksrv.testing import Server
from tests.support.models import write_double

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PUBLIC = re.compile(r"/v2/health/live$|/v2/health/ready$|/ping$|/$|/ui/|/docs(/|$)")
CONTROL = re.compile(
    r"/v2/repository/models/|/v1/config/reload|/v2/(system|cuda)sharedmemory/|/v2/logging|/v2/(.+/)?trace/setting$"
    r"|/models/.+/set-default$"
)
CHANGES = {
    "/models": {"POST"},
    "/models/{name}": {"PUT", "DELETE"},
    "/models/{name}/{version}": {"PUT", "DELETE"},
}
"""Of paths that others may read, the methods that need control."""
VALUES = {"name": "double", "version": "1", "region": "r", "url_path:path": "a/b"}

NOBODY = {}
STRANGER = {"Authorization": "Bearer other"}
USER = {"Authorization": "Bearer good-token"}
OPERATOR = {"Authorization": "Bearer control-token"}
WEB_PAGE = {"Origin": "https://elsewhere.example"}
BEHIND_A_PROXY = {"X-Forwarded-For": "198.51.100.7"}
REBOUND = {"Host": "evil.example"}  # a name that leads here; a page's GET has no Origin

inspect.register_router(GuardedRouter)(inspect.inspect_compiled_router)


def routes():
    """The template of every route that a server can have."""
    app = make_app(None, ServerSettings(allow_shared_memory=True, torchserve_api=True))
    return sorted(route.path for route in inspect.inspect_routes(app))


def written(template):
    """The path of a route in normal form."""
    return re.sub(r"\{([^}]*)\}", lambda field: VALUES[field[1]], template)


def odd_forms(template):
    """Other ways to write the path of a route, which some reader takes for the same one."""
    path = written(template)
    head, _, tail = path.rpartition("/")
    first = path.split("/")[1]
    yield from ("/" + path, "//" + path, "/." + path, "/x/.." + path, "/%2e" + path)
    yield from ("/%2f" + path[1:], "/%5c" + path[1:], "/\\" + path[1:], "\\" + path)
    yield from (
        path + "//",
        path + "/.",
        path + "/..",
        path + "/%2e%2E/",
        path + "%00",
        path + "#x",
    )
    yield from (f"{head}//{tail}", f"{head}/./{tail}", f"{head}/y/../{tail}", f"{head}%2F{tail}")
    if first and template.startswith(
        f"/{first}"
    ):  # a name may be escaped, what the route spells out not
        yield path.replace(f"/{first}", f"/%{ord(first[0]):02x}{first[1:]}", 1)
    yield f"http://ksrv/{path}"


class Caller:
    """One connection to a server."""

    def __init__(self, server):
        self._connection = http.client.HTTPConnection(*server.http.split(":"), timeout=30)

    def status(self, method, path, headers):
        self._connection.request(method, path, headers=headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    write_double(folder)
    (folder.parent / "tokens").write_text("good-token\n")
    (folder.parent / "control").write_text("control-token\n")
    return folder


@pytest.fixture(scope="module")
def open_server(model):
    with Server(model, grpc="off", allow_shared_memory=True, torchserve_api=True) as running:
        yield running


@pytest.fixture(scope="module")
def control_server(model):
    with Server(
        model,
        grpc="off",
        allow_shared_memory=True,
        torchserve_api=True,
        control_token_file=str(model.parent / "control"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def token_server(model):
    with Server(
        model,
        grpc="off",
        allow_shared_memory=True,
        torchserve_api=True,
        token_file=str(model.parent / "tokens"),
        control_token_file=str(model.parent / "control"),
    ) as running:
        yield running


CALLERS = {
    "open_server": {
        "web page": (WEB_PAGE, 403),
        "behind a proxy": (BEHIND_A_PROXY, 403),
        "rebound page": (REBOUND, 403),
    },
    "control_server": {"nobody": (NOBODY, 401), "stranger": (STRANGER, 401)},
    "token_server": {"nobody": (NOBODY, 401), "stranger": (STRANGER, 401), "user": (USER, 401)},
}


@pytest.mark.parametrize("kind", CALLERS)
def test_who_may_call_is_decided_by_the_route(kind, request):
    server = request.getfixturevalue(kind)
    caller = Caller(server)
    for template in routes():
        for method in METHODS:
            for who, (headers, refusal) in CALLERS[kind].items():
                for path in (written(template), written(template) + "/"):
                    status = caller.status(method, path, headers)
                    needs_token = kind == "token_server" and who != "user"
                    refused = (
                        CONTROL.match(template)
                        or method in CHANGES.get(template, ())
                        or (needs_token and not PUBLIC.match(template))
                    )
                    if refused:
                        assert status == refusal, (who, method, path)
                    else:
                        assert status not in (401, 403), (who, method, path)
    for method in METHODS:
        status = caller.status(method, "/no/such/route", NOBODY)
        assert status == (401 if kind == "token_server" else 404)
    assert caller.status("GET", "/v2/models/double/ready", USER) == 200


@pytest.mark.parametrize("kind", CALLERS)
def test_a_path_that_is_not_in_normal_form_leads_nowhere(kind, request):
    """Every path with GET and POST, which the native server has routes of its own for, and with one of the others.

    The callers take turns, and so do the other methods: each meets each form.
    """
    server = request.getfixturevalue(kind)
    caller = Caller(server)
    callers = [(headers, (400, 401, 403, 404)) for headers, _ in CALLERS[kind].values()]
    turns = itertools.cycle([*callers, (OPERATOR, (400, 404))])
    others = itertools.cycle(method for method in METHODS if method not in ("GET", "POST"))
    for place, template in enumerate(routes()):
        for _ in range(place % (len(callers) + 1)):
            next(turns)
        for path in odd_forms(template):
            for method in ("GET", "POST", next(others)):
                headers, allowed = next(turns)
                assert caller.status(method, path, headers) in allowed, (headers, method, path)
    assert caller.status("GET", "/v2/models/double/ready", USER) == 200


def test_control_opens_every_route(token_server):
    caller = Caller(token_server)
    for template in routes():
        for method in METHODS:
            assert caller.status(method, written(template), OPERATOR) not in (401, 403)
    assert caller.status("POST", "/v2/repository/models/double/load", OPERATOR) == 200


def test_an_absolute_target_is_its_path(token_server):
    caller = Caller(token_server)
    assert caller.status("GET", "http://ksrv/v2/health/live", NOBODY) == 200
    assert caller.status("POST", "http://ksrv/v2/repository/models/double/unload", USER) == 401


def test_a_route_that_says_nothing_is_for_control(tmp_path):
    (tmp_path / "control").write_text("control-token\n")
    settings = ServerSettings(control_token_file=str(tmp_path / "control"))

    class Forgotten:
        def on_get(self, req, resp):
            resp.text = "served"

    app = make_app(None, settings, access=Access(settings))
    app.add_route("/forgotten", Forgotten())
    client = testing.TestClient(app)
    assert client.simulate_get("/forgotten").status == falcon.HTTP_401
    assert client.simulate_get("/forgotten", headers=OPERATOR).text == "served"


def test_the_refusal_says_what_is_odd(open_server):
    caller = http.client.HTTPConnection(*open_server.http.split(":"), timeout=30)
    for path, fault in {
        "//v2": "empty segment",
        "/v2/../v2": "'.' or '..'",
        "/v2/%2e%2e/v2": "'.' or '..'",
        "/v2%0a": "control character",
        "/v2\\models": "backslash",
    }.items():
        caller.request("GET", path)
        answer = caller.getresponse()
        assert (answer.status, fault in answer.read().decode()) == (400, True), path

"""Every route x method x caller x way to write its path: who is let through is decided by the route.

The routes are listed by the app itself, so that a new route is tested too. The credentials that a route needs are
listed here again, by its template, and compared with a real server's answers.
"""

import contextlib
import itertools
import re

import falcon
import pytest
from falcon import inspect, testing

from ksrv.dialects import registry
from ksrv.server.app import make_app
from ksrv.server.credentials import Access
from ksrv.server.rest.route_guard import GuardedRouter
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http_reader import open_connection, read_message

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
VALUES = {
    "name": "double",
    "version": "1",
    "label": "stable",
    "region": "r",
    "url_path:path": "a/b",
}

NOBODY = {}
STRANGER = {"Authorization": "Bearer other"}
USER = {"Authorization": "Bearer good-token"}
OPERATOR = {"Authorization": "Bearer control-token"}
WEB_PAGE = {"Origin": "https://elsewhere.example"}
BEHIND_A_PROXY = {"X-Forwarded-For": "198.51.100.7"}
REBOUND = {"Host": "evil.example"}  # a name that leads here; a page's GET has no Origin

SETTINGS = {"grpc": "off", "allow_shared_memory": True, "torchserve_api": True}

inspect.register_router(GuardedRouter)(inspect.inspect_compiled_router)


def routes():
    """The template of every route that a server can have."""
    settings = ServerSettings(allow_shared_memory=True, torchserve_api=True)
    memory = registry.shared_memory(settings, Access(settings))
    app = make_app(server_parts(None, settings, shared_memory=memory))
    return sorted(route.path for route in inspect.inspect_routes(app))


def written(template):
    """The path of a route in normal form."""
    return re.sub(r"\{([^}]*)\}", lambda field: VALUES[field[1]], template)


def odd_forms(template):
    """Other ways to write the path of a route, which some reader takes for the same path."""
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
    """A connection to a server, which connects again if the server ends it.

    http.client takes three quarters of a request's time, and the tests make twenty thousand requests.
    """

    def __init__(self, server):
        self._server = server
        self._connection = open_connection(server.http, 30)

    def answer(self, method, path, headers):
        lines = {"Host": self._server.http, **headers}
        if method in ("POST", "PUT", "PATCH"):
            lines["Content-Length"] = "0"
        fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._connection.sendall(f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1"))
        head, body, rest = read_message(self._connection, has_body=method != "HEAD")
        assert rest == b"", (method, path)
        if b"\r\nconnection: close" in head.lower():
            self.close()
            self._connection = open_connection(self._server.http, 30)
        return int(head.split(b" ", 2)[1]), body

    def status(self, method, path, headers):
        return self.answer(method, path, headers)[0]

    def close(self):
        self._connection.close()


@pytest.fixture
def caller_of():
    """Returns a caller of a server."""
    with contextlib.ExitStack() as made:
        yield lambda server: made.enter_context(contextlib.closing(Caller(server)))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    write_double(folder)
    (folder.parent / "tokens").write_text("good-token\n")
    (folder.parent / "control").write_text("control-token\n")
    return folder


@pytest.fixture(scope="module")
def open_server(model):
    with Server(model, **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def control_server(model):
    control = str(model.parent / "control")
    with Server(model, **SETTINGS, control_token_file=control) as running:
        yield running


@pytest.fixture(scope="module")
def token_server(model):
    tokens, control = str(model.parent / "tokens"), str(model.parent / "control")
    with Server(model, **SETTINGS, token_file=tokens, control_token_file=control) as running:
        yield running


CALLERS = {
    "open_server": {
        "web page": (WEB_PAGE, 403),
        "behind a proxy": (BEHIND_A_PROXY, 403),
        "rebound page": (REBOUND, 403),
    },
    "control_server": {
        "nobody": (NOBODY, 401),
        "stranger": (STRANGER, 401),
        "rebound page": (REBOUND, 403),
    },
    "token_server": {"nobody": (NOBODY, 401), "stranger": (STRANGER, 401), "user": (USER, 401)},
}


@pytest.mark.parametrize("kind", CALLERS)
def test_each_route_admits_exactly_its_callers(kind, request, caller_of):
    """CVE-2026-24206, CVE-2026-24207."""
    caller = caller_of(request.getfixturevalue(kind))
    ends = itertools.cycle(("", "/"))  # either end leads to the route
    for template, method in itertools.product(routes(), METHODS):
        for who, (headers, refusal) in CALLERS[kind].items():
            path = written(template) + next(ends)
            status = caller.status(method, path, headers)
            needs_token = kind == "token_server" and who != "user"
            refused = (
                CONTROL.match(template)
                or method in CHANGES.get(template, ())
                or (needs_token and not PUBLIC.match(template))
            )
            if who == "rebound page":
                # A target of two slashes is refused before anybody looks at the Host.
                assert status == (400 if path == "//" else 403), (who, method, path)
            elif refused:
                assert status == refusal, (who, method, path)
            else:
                assert status not in (401, 403), (who, method, path)
    for method in METHODS:
        status = caller.status(method, "/no/such/route", NOBODY)
        assert status == (401 if kind == "token_server" else 404)
    assert caller.status("GET", "/v2/models/double/ready", USER) == 200


@pytest.mark.parametrize("kind", CALLERS)
def test_a_path_that_is_not_in_normal_form_leads_nowhere(kind, request, caller_of):
    """Every path with GET and POST, for which the native server has special routes, and with one other method.

    The callers take turns, and so do the other methods: each meets each form.
    """
    caller = caller_of(request.getfixturevalue(kind))
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


def test_control_opens_every_route(token_server, caller_of):
    caller = caller_of(token_server)
    for template in routes():
        for method in METHODS:
            assert caller.status(method, written(template), OPERATOR) not in (401, 403)
    assert caller.status("POST", "/v2/repository/models/double/load", OPERATOR) == 200


def test_an_absolute_target_is_its_path(token_server, caller_of):
    caller = caller_of(token_server)
    assert caller.status("GET", "http://ksrv/v2/health/live", NOBODY) == 200
    assert caller.status("POST", "http://ksrv/v2/repository/models/double/unload", USER) == 401


def test_route_without_needs_requires_control_rights(tmp_path):
    (tmp_path / "control").write_text("control-token\n")
    settings = ServerSettings(control_token_file=str(tmp_path / "control"))

    class Forgotten:
        def on_get(self, req, resp):
            resp.text = "served"

    app = make_app(server_parts(None, settings))
    app.add_route("/forgotten", Forgotten())
    client = testing.TestClient(app)
    assert client.simulate_get("/forgotten").status == falcon.HTTP_401
    assert client.simulate_get("/forgotten", headers=OPERATOR).text == "served"


def test_refusal_names_the_odd_part_of_a_path(open_server, caller_of):
    caller = caller_of(open_server)
    for path, fault in {
        "//v2": "empty segment",
        "/v2/../v2": "'.' or '..'",
        "/v2/%2e%2e/v2": "'.' or '..'",
        "/v2%0a": "control character",
        "/v2\\models": "backslash",
    }.items():
        status, body = caller.answer("GET", path, NOBODY)
        assert (status, fault in body.decode()) == (400, True), path

"""The checks in front of every REST resource: the form of a request, and the rights of its caller.

Falcon first calls `Guard`, then asks `GuardedRouter` for the resource of a path. The router returns a resource only to
a caller who may use it. Because routing and check use the same lookup, the resource that runs is always the resource
that was checked. A route that is added without `needs` needs the control token. A path without a route needs the token
of an ordinary call.
"""

import difflib
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import falcon
from falcon.routing import CompiledRouter

from ksrv.errors import HeadTooLarge, InvalidRequest, NotFound, quote
from ksrv.limits import show_limit
from ksrv.protocol.openapi import DescribedRoute, Operation
from ksrv.request import is_forwarded
from ksrv.server.audit import CONTROL_CALL, control_call
from ksrv.server.credentials import Access
from ksrv.server.http.body import Environ
from ksrv.server.http.received_body import MESSAGE

ROUTE = "ksrv.route"
"""The key in the WSGI environment of a route that was found, and whose checks were passed, before the body arrived."""

MODEL = "/v2/models/{name}"
"""The path of a model."""

_AUTHORITY = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_COMPARED_CHARACTERS = 128  # of an unknown path, because the comparison takes quadratic time
_LEAST_LIKENESS = 0.7
_CALLED_AT = (
    "; a model is called at /v2/models/{name}/infer, or /v1/models/{name}:predict in KServe's v1; "
    "/openapi.json has every route"
)


class Needs(enum.Enum):
    """The credentials that a caller of a route needs.

    Attributes:
        NOTHING: Every caller is let in, so that probes work.
        TOKEN: The token, if one is configured.
        CONTROL: The control token; without one, an address of this machine.
    """

    NOTHING = enum.auto()
    TOKEN = enum.auto()
    CONTROL = enum.auto()


def check_control(access: Access, environ: Environ) -> None:
    """Raise unless the caller may load and unload models, and use shared memory.

    Raises:
        KsrvError: The caller may not.
    """
    access.check_control(
        environ.get("HTTP_AUTHORIZATION"),
        peer=environ.get("REMOTE_ADDR", ""),
        forwarded=is_forwarded(
            name[5:].replace("_", "-") for name in environ if name.startswith("HTTP_")
        ),
        origin=environ.get("HTTP_ORIGIN"),
        host=environ.get("HTTP_HOST", ""),
    )


def control_user(access: Access, environ: Environ) -> tuple[int, int] | None:
    """Check a control call, and return the user and group of its caller on a unix socket; None on TCP.

    Raises:
        KsrvError: The caller may make no control calls.
    """
    check_control(access, environ)
    message = environ.get(MESSAGE)
    return None if message is None else message.client_user()


class GuardedRouter(CompiledRouter):
    """Falcon's router, which finds a resource only for callers who may use it.

    Args:
        access: Who may call.
        path_hint: Returns a hint for the error about an unknown path, or "". Its arguments are the path's first
            segment and the served routes.
    """

    def __init__(self, access: Access, path_hint: Callable[[str, Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._access = access
        self._path_hint = path_hint
        self._needs: dict[str, Needs] = {}
        self._described: dict[str, Mapping[str, Operation]] = {}

    def add_route(
        self,
        uri_template: str,
        resource: object,
        *,
        needs: Needs = Needs.CONTROL,
        described: Mapping[str, Operation] | None = None,
        **keywords: Any,
    ) -> None:
        """Add a route; see `falcon.App.add_route`.

        Args:
            needs: The credentials that its callers need.
            described: The descriptions of its methods by lower-case name, for the OpenAPI document.
        """
        super().add_route(uri_template, resource, **keywords)
        self._needs[uri_template] = needs
        if described:
            self._described[uri_template] = described

    def described_routes(self) -> list[DescribedRoute]:
        """Return the routes of the OpenAPI document."""
        return [
            DescribedRoute(path, operations, is_open=self._needs[path] is Needs.NOTHING)
            for path, operations in self._described.items()
        ]

    def map_http_methods(self, resource: object, **keywords: Any) -> Any:
        """Return a resource's functions by their method. The function of GET also answers HEAD, without the body.

        If GET and POST have the same function, GET runs a model. Such a route does not answer HEAD.
        """
        found: Any = super().map_http_methods(resource, **keywords)
        if "GET" in found and found["GET"] != found.get("POST"):
            found.setdefault("HEAD", found["GET"])
        return found

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:
        """Find a route as `CompiledRouter.find` does, or raise if the caller may not use it.

        Args:
            req: The request; without a request, no caller is checked.

        Raises:
            KsrvError: The caller may not use the route, or wrote one of its fixed segments with escapes.
        """
        if req is not None and ROUTE in req.env:
            return req.env[ROUTE]
        found = super().find(uri, req)
        if req is None:
            return found
        template = "" if found is None else str(found[3])
        needs = Needs.TOKEN if found is None else self._needs.get(template, Needs.CONTROL)
        if needs is Needs.CONTROL:
            req.env[CONTROL_CALL] = control_call(template, req.path)
            check_control(self._access, req.env)
        if needs is not Needs.NOTHING:
            self._access.check(req.get_header("Authorization"))
        if found is None:
            raise NotFound(f"no route for {quote(req.path)}{self._suggestion(req.path)}")
        _check_fixed_segments(template, raw_path(req.env))
        return found

    def _suggestion(self, path: str) -> str:
        """Return the end of the error about an unknown path, which names the route that the client may mean."""
        given = path[:_COMPARED_CHARACTERS].strip("/").split("/")
        likeness, nearest = max(
            (
                (_likeness(template.strip("/").split("/"), given), template)
                for template, needs in self._needs.items()
                if needs is not Needs.CONTROL
            ),
            key=lambda pair: pair[0],
        )
        if likeness >= _LEAST_LIKENESS:
            return f"; did you mean {nearest}?"
        return self._path_hint(given[0], self._needs) or _CALLED_AT


def _likeness(template: Sequence[str], given: Sequence[str]) -> float:
    """Return how much the segments of a path look like the last segments of a route: 1 if they are equal."""
    if len(given) > len(template):
        return 0.0
    pairs = zip(template[len(template) - len(given) :], given, strict=True)
    fixed = [(one, other) for one, other in pairs if not one.startswith("{")]
    if not fixed:
        return 0.0
    # If the client left out the beginning of a route, such as /v2, the rest must be exact.
    if len(given) < len(template):
        return float(all(one == other for one, other in fixed))
    return min(difflib.SequenceMatcher(None, one, other).ratio() for one, other in fixed)


def add_model_route(
    app: "falcon.App[Any, Any]",
    path: str,
    resource: object,
    suffix: str | None = None,
    **described: Operation,
) -> None:
    """Add a route of every model and version, for callers with the token.

    Args:
        path: The path after the model's.
        described: The descriptions of its methods.
    """
    for prefix, shown in (MODEL, described), (MODEL + "/versions/{version}", {}):
        app.add_route(prefix + path, resource, needs=Needs.TOKEN, suffix=suffix, described=shown)


class Guard:
    """Falcon middleware: the checks of a request's form and of the host that it names, before it is routed.

    Args:
        access: Who may call.
        head_limit: The most bytes of its headers.
    """

    def __init__(self, access: Access, head_limit: int) -> None:
        self._access = access
        self._head_limit = head_limit

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Let the request pass or raise."""
        if ROUTE not in req.env:
            self.check(req.env)

    def check(self, environ: Environ) -> None:
        """Let a request pass by its head, or raise."""
        self._check_head(environ)
        check_path(raw_path(environ))
        self._access.check_host(environ.get("HTTP_HOST", ""), peer=environ.get("REMOTE_ADDR", ""))

    def _check_head(self, environ: Environ) -> None:
        size = sum(
            len(name)
            + len(value)
            - 1  # the name has 5 more characters than on the wire (HTTP_), and lacks 4 (": " and CR LF)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        )
        if size > self._head_limit:
            raise HeadTooLarge(
                f"the request's headers hold {size} bytes, above the "
                f"{show_limit('head', self._head_limit)}"
            )


def raw_path(environ: Environ) -> str:
    """Return the path below the app as the client wrote it, before anything is decoded.

    Args:
        environ: The WSGI environment; a server that keeps no `RAW_URI` has decoded the path.
    """
    target = str(environ.get("RAW_URI") or environ.get("PATH_INFO", "")).partition("?")[0]
    return _AUTHORITY.sub("", target, count=1).removeprefix(environ.get("SCRIPT_NAME", "")) or "/"


def check_path(path: str) -> None:
    """Refuse a path that a proxy and this server could understand differently.

    One slash at the end is allowed, and so are escapes of characters that need none.

    Args:
        path: The path as the client wrote it.

    Raises:
        InvalidRequest: It is not in normal form.
        NotFound: A segment has an escaped slash, as no name does.
    """
    if "%2f" in path.lower():
        raise NotFound(f"no route has an escaped slash in its path, as {quote(path)} has")
    decoded = unquote(path, errors="replace")
    segments = decoded.removesuffix("/").split("/")[1:]
    fault = ""
    if not decoded.startswith("/"):
        fault = "does not begin with '/'"
    elif "" in segments:
        fault = "has an empty segment ('//')"
    elif "." in segments or ".." in segments:
        fault = "has a segment '.' or '..'"
    elif "\\" in decoded or "#" in path:
        fault = "has a backslash or a '#'"
    elif _CONTROL_CHARACTER.search(decoded):
        fault = "has a control character"
    if fault:
        raise InvalidRequest(
            f"the path {quote(path)} {fault}; write each segment as it is, with one '/' before it"
        )


def _check_fixed_segments(template: str, path: str) -> None:
    """Refuse escapes in the fixed segments of a route, because a proxy's rules may not match them."""
    if "%" not in path:
        return
    for fixed, given in zip(template.split("/"), path.split("/"), strict=False):
        if not fixed.startswith("{") and fixed and fixed != given:
            raise NotFound(f"no route is written as {quote(path)}; {quote(template)} is")

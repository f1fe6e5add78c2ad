"""The checks in front of every REST resource: the form of a request, and the rights of its caller.

Falcon calls the guard before it routes, and asks the router which resource a path names. The router
returns a resource only to a caller who may use it. So the path is read once: the resource that is run
is the resource that was checked. A route without `needs` needs the control token, and a
path without a route needs the token of an ordinary call.
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
"""The key in the WSGI environment of the route that was found, and whose checks were passed, before the body came."""

MODEL = "/v2/models/{name}"
"""The path of a model."""

_AUTHORITY = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST_COMPARED = 128
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
    """Let a call that loads or unloads models, or uses shared memory, pass or raise.

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
    """Return the user and group at the other end of the unix socket of a control call, or None.

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
        path_hint: Returns what the sentence about a path without a route says beside it, for the path's first segment
            and the routes that are served.
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
            described: The descriptions of its methods by their names in lower case, for the OpenAPI document.
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
        """Return a resource's functions by their method; GET's answers HEAD, without its body.

        A GET that is POST by another name runs a model, so nothing answers HEAD there.
        """
        found: Any = super().map_http_methods(resource, **keywords)
        if "GET" in found and found["GET"] != found.get("POST"):
            found.setdefault("HEAD", found["GET"])
        return found

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:
        """Find a route as `CompiledRouter.find` does, or raise if the caller may not use it.

        Args:
            req: The request; without one nothing is asked of the caller.

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
            raise NotFound(f"no route for {quote(req.path)}{self._meant(req.path)}")
        _check_fixed_segments(template, raw_path(req.env))
        return found

    def _meant(self, path: str) -> str:
        """Return what a sentence about a path without a route says of the route that may be meant."""
        given = path[:_LONGEST_COMPARED].strip("/").split("/")
        likeness, nearest = max(
            (
                (_likeness(template.strip("/").split("/"), given), template)
                for template, needs in self._needs.items()
                if needs is not Needs.CONTROL
            ),
            key=lambda one: one[0],
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
    # Of a path that leaves the beginning out, what is left has to be exact.
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
            - 1  # HTTP_ and : and blanks and line end, as good as on the wire
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
    """Refuse a path that another reader may take for another resource.

    One slash at the end is let through, and so are escapes that mean the same character in a name.

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
    """Refuse escapes in what a route spells out; names may be escaped."""
    if "%" not in path:
        return
    for fixed, given in zip(template.split("/"), path.split("/"), strict=False):
        if not fixed.startswith("{") and fixed and fixed != given:
            raise NotFound(f"no route is written as {quote(path)}; {quote(template)} is")

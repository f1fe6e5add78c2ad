"""The routes of the page at `/`, and of the viewer at `/docs`.

The page is HTML, CSS and JavaScript in files, without a build step. It needs no credentials, because it
contains no data: it reads the models from the v2 routes, with the token that its user
types. Its URLs are relative, so it works behind a proxy that serves ksrv under a path.
"""

import json
from typing import Any

import falcon

from ksrv.model.datatypes import DTYPES, FLOATING
from ksrv.server.http.answers import send_json
from ksrv.server.page.files import FOLDER, PageFile
from ksrv.server.page.viewer import add_viewer
from ksrv.server.rest.route_guard import Needs


class RootResource:
    """GET /: the page for browsers, which name `text/html`, and for other clients the liveness of KServe's v1.

    Args:
        page: The page, or None if it is not served.
    """

    def __init__(self, page: PageFile | None) -> None:
        self._page = page

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the page, or that the server lives."""
        resp.append_header("Vary", "Accept")
        if self._page is not None and "text/html" in req.accept.lower():
            self._page.on_get(req, resp)
        else:
            send_json(resp, {"status": "alive"})


def add_page(app: "falcon.App[Any, Any]", *, shown: bool, docs: bool) -> None:
    """Add the routes of the page.

    Args:
        shown: Whether the page is served. If not, `/` only answers that the server lives.
        docs: Whether the viewer of the OpenAPI document is served.
    """
    if docs:
        add_viewer(app)
    page = PageFile(FOLDER / "index.html", without="" if docs else "docs-link")
    root = RootResource(page if shown else None)
    app.add_route("/", root, needs=Needs.NOTHING)
    if not shown:
        return
    dtypes = {name: dtype.str for name, dtype in DTYPES.items()}
    exported = {"DTYPES": dtypes, "FLOATING": FLOATING}
    script = "".join(
        f"export const {name} = {json.dumps(value)};\n" for name, value in exported.items()
    )
    datatypes = PageFile(FOLDER / "datatypes.js", content=script)
    app.add_route("/ui/datatypes.js", datatypes, needs=Needs.NOTHING)
    for path in sorted(FOLDER.iterdir()):
        if path.name != "index.html":
            app.add_route(f"/ui/{path.name}", PageFile(path), needs=Needs.NOTHING)

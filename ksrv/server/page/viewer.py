"""The viewer of the OpenAPI document at `/docs`: Swagger UI, from an installed package, so that it works offline."""

from pathlib import Path
from typing import Any

import falcon

from ksrv.errors import NotFound
from ksrv.server.page.files import FOLDER, SECURITY_HEADERS, PageFile
from ksrv.server.rest.route_guard import Needs

VIEWER = Path(__file__).parent / "viewer"

MISSING = (
    "the viewer at /docs needs Swagger UI, which is not installed where this server runs: pip install "
    "swagger-ui-bundle-v2; the document that it shows is /openapi.json"
)

# The page's headers, but Swagger UI needs data: images (the arrows of its style sheet), and no Trusted Types, because
# it makes markup of the document's texts (with a built-in sanitizer). Scripts still come from this server only.
HEADERS = SECURITY_HEADERS | {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


class MissingViewer:
    """GET /docs if Swagger UI is not installed."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Say what is missing."""
        raise NotFound(MISSING)


def add_viewer(app: "falcon.App[Any, Any]") -> None:
    """Add the routes of the viewer.

    Args:
        app: The app.
    """
    folder = _swagger_ui()
    if folder is None:
        app.add_route("/docs", MissingViewer(), needs=Needs.NOTHING)
        return
    app.add_route("/docs", PageFile(VIEWER / "index.html", HEADERS), needs=Needs.NOTHING)
    files = [folder / "swagger-ui.css", folder / "swagger-ui-bundle.js", FOLDER / "icon.svg"]
    for path in (*files, VIEWER / "viewer.css", VIEWER / "viewer.js"):
        app.add_route(f"/docs/{path.name}", PageFile(path, HEADERS), needs=Needs.NOTHING)


def _swagger_ui() -> Path | None:
    """Return the folder of Swagger UI's files; None if its package is not installed."""
    try:
        from swagger_ui_bundle import swagger_ui_path
    except ImportError:
        return None
    return Path(str(swagger_ui_path))

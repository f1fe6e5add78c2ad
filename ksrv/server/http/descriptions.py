"""Answers of the routes that describe a model, rendered for the HTTP server's I/O threads.

They are rendered when a model comes or changes, and sent without Python. The HTTP server sends none of
them from the moment in which the models change until they are rendered anew.
"""

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from ksrv._native.server.server import PreparedAnswer
from ksrv.errors import KsrvError
from ksrv.limits import Limits
from ksrv.protocol import metadata
from ksrv.server.http.fast_path import render_json
from ksrv.server.rest.health import model_ready

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

log = logging.getLogger(__name__)


def is_ready(engine: "Engine", name: str, version: str) -> bool:
    """Tell whether a model serves, for a name and version that may be gone by now.

    Args:
        engine: Where it is looked up.
        name: The model's name.
        version: The version's, or "" for the highest.
    """
    try:
        return not engine.why_model_not_ready(name, version)
    except KsrvError:
        return False


def describe(
    engine: "Engine", name: str, model: "ModelVersion", limits: Limits, *, ready: bool
) -> tuple[PreparedAnswer | None, PreparedAnswer | None]:
    """Return the answers that hold a model's metadata and say that it is ready.

    Args:
        engine: Where its versions are looked up.
        name: The model's name.
        model: The version that requests reach.
        limits: Bounds that the metadata shows.
        ready: Whether it serves; the reason why a model does not is left to the Falcon app.
    """
    try:
        document = metadata.model_metadata(model.spec, engine.versions(name), limits)
        described = render_json(document, HTTPStatus.OK)
        return described, render_json(model_ready(name), HTTPStatus.OK) if ready else None
    except KsrvError:  # gone since the look at the table
        return None, None
    except Exception:
        log.exception("the metadata of the model %s cannot be rendered", ascii(name))
        return None, None

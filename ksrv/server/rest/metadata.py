"""A model's metadata and readiness, which the HTTP server's I/O threads send without Python.

They are rendered when a model is loaded or changes. After a change of the models the threads send none of them until
all are rendered again.
"""

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from ksrv._native.server.server import PreparedAnswer
from ksrv.errors import KsrvError
from ksrv.limits import Limits
from ksrv.protocol import metadata
from ksrv.server.rest.fast_path import render_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

log = logging.getLogger(__name__)


def is_ready(engine: "Engine", name: str, version: str) -> bool:
    """Tell whether a model serves without any problem; the name and version may be gone by now.

    Args:
        version: The version's, or "" for the highest.
    """
    try:
        return not (engine.why_model_not_ready(name, version) or engine.why_degraded(name, version))
    except KsrvError:
        return False


def describe(
    engine: "Engine", name: str, model: "ModelVersion", limits: Limits, *, ready: bool
) -> tuple[PreparedAnswer | None, PreparedAnswer | None]:
    """Return the answers with a model's metadata and its readiness.

    Args:
        ready: Whether it serves with all of its instances; why it does not is left to the Falcon app.
    """
    try:
        document = metadata.model_metadata(model.spec, engine.versions(name), limits)
        described = render_json(document, HTTPStatus.OK)
        health = render_json({"name": name, "ready": True}, HTTPStatus.OK)
        return described, health if ready else None
    except KsrvError:  # gone since the look at the table
        return None, None
    except Exception:
        log.exception("the metadata of the model %s cannot be rendered", ascii(name))
        return None, None

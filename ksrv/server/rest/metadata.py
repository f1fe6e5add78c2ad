"""A model's metadata and readiness, which the HTTP server's I/O threads send without Python.

The worker renders these answers again after each change of the models. From the change until then, the Falcon app
answers instead.
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
    """Tell whether a model serves with all of its instances. False for a model that was unloaded meanwhile.

    Args:
        version: The version, or "" for the highest.
    """
    try:
        return not (engine.why_model_not_ready(name, version) or engine.why_degraded(name, version))
    except KsrvError:
        return False


def describe(
    engine: "Engine", name: str, model: "ModelVersion", limits: Limits, *, ready: bool
) -> tuple[PreparedAnswer | None, PreparedAnswer | None]:
    """Return two answers: a model's metadata, and that it is ready. None leaves an answer to the Falcon app.

    Args:
        ready: See `is_ready`. If the model is not ready, the Falcon app answers with the reason.
    """
    try:
        document = metadata.model_metadata(model.spec, engine.versions(name), limits)
        described = render_json(document, HTTPStatus.OK)
        health = render_json({"name": name, "ready": True}, HTTPStatus.OK)
        return described, health if ready else None
    except KsrvError:  # the model was unloaded meanwhile
        return None, None
    except Exception:
        log.exception("the metadata of the model %s cannot be rendered", ascii(name))
        return None, None

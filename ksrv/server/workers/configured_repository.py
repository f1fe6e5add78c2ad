"""Makes the `Repository` of the models to serve from the settings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv.dialects.registry import formats
from ksrv.repository.layout import Repository
from ksrv.server.settings import ServerSettings, SettingsError

if TYPE_CHECKING:
    from ksrv.dialects.dialect import ForeignSettings


def configured_repository(
    settings: ServerSettings, foreign: "Mapping[str, ForeignSettings]" = MappingProxyType({})
) -> Repository:
    """Return the repository of the models to serve.

    Args:
        foreign: The settings files of other servers, by the setting that names them.

    Raises:
        SettingsError: The settings of a handler file are not a JSON object.
    """
    return Repository(
        settings.models, formats(foreign), settings.model_name, _model_settings(settings)
    )


def _model_settings(settings: ServerSettings) -> dict[str, Any] | None:
    if settings.model_settings is None:
        return None
    try:
        return msgspec.json.decode(settings.model_settings, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SettingsError(
            f"setting 'model_settings': expected a JSON object such as {{\"instances\": 2}}: {error}"
        ) from None

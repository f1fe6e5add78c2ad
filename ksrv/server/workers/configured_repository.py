"""The repository that the settings name."""

from typing import Any

import msgspec

from ksrv.repository.formats import archive_readers
from ksrv.repository.layout import Repository
from ksrv.repository.overrides import ConfigOverrides
from ksrv.server.settings import ServerSettings, SettingsError


def configured_repository(
    settings: ServerSettings,
    defaults: Any = None,
    overrides: ConfigOverrides | None = None,
) -> Repository:
    """Return the repository of the models to serve.

    Args:
        defaults: The defaults for archives, or None.
        overrides: The configurations that load calls brought to any worker.

    Raises:
        SettingsError: The settings of a handler file are no JSON object.
    """
    return Repository(
        settings.models,
        archive_readers(defaults),
        settings.model_name,
        _model_settings(settings),
        overrides,
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

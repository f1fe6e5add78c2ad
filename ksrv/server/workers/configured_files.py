"""The files that the settings name, as the master read them when it started or was last reloaded.

Every worker inherits them from the master: a worker that replaces another has the same files as the
other workers, even if the files have changed since.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksrv.server.config_properties import ConfigPropertiesError, Translated, translate
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings, SettingsError
from ksrv.server.tls import Certificates, read_certificates


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The contents of the files.

    Attributes:
        access: The tokens.
        certificates: The files of TLS; None without TLS.
        torchserve: The config.properties; None without one.
    """

    access: Access
    certificates: Certificates | None = None
    torchserve: Translated | None = None


def read_files(settings: ServerSettings, config: Any) -> GivenFiles:
    """Read every file anew.

    Raises:
        SettingsError: One cannot be used.
    """
    torchserve = None
    if settings.torchserve_config:
        try:
            torchserve = translate(Path(settings.torchserve_config))
        except ConfigPropertiesError as error:
            raise SettingsError(f"setting 'torchserve_config': {error}") from error
    return GivenFiles(Access(settings), read_certificates(config), torchserve)

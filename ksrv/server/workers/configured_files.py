"""The files that the settings name, as the master read them when it started or was last reloaded.

Every worker inherits their content from the master. So a worker that replaces another uses the same content as the
other workers, even if the files have changed since.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv.dialects.registry import read_foreign_settings
from ksrv.server.credentials import Access
from ksrv.server.launch.tls import Certificates, read_certificates
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.dialects.dialect import ForeignSettings


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The contents of the files.

    Attributes:
        access: The tokens.
        certificates: The files of TLS; None without TLS.
        foreign: The settings files of other servers, by the setting that names them.
    """

    access: Access
    certificates: Certificates | None = None
    foreign: "Mapping[str, ForeignSettings]" = field(default_factory=dict)


def read_files(settings: ServerSettings, config: Any) -> GivenFiles:
    """Read every file anew.

    Raises:
        SettingsError: One cannot be used.
    """
    return GivenFiles(
        Access(settings),
        read_certificates(config),
        read_foreign_settings(msgspec.structs.asdict(settings)),
    )

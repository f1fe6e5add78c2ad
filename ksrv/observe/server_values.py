"""What is true of the whole server and no single worker could tell: restarts, reloads, certificates."""

from typing import Protocol


class ServerValues(Protocol):
    """The values; all times are whole seconds since 1970."""

    @property
    def restarts(self) -> int:
        """How many workers ended without having been told to."""

    @property
    def last_reload(self) -> int:
        """When the last reload was asked for; 0 for never."""

    @property
    def last_reload_successful(self) -> bool:
        """Whether every worker of the last reload got ready; true before the first."""

    @property
    def certificate_expiry(self) -> int:
        """When the served certificate ends; 0 without TLS."""

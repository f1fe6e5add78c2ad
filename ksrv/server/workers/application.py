"""gunicorn inside `ksrv serve`: the base application with ksrv's configuration.

Neither `gunicorn.conf.py` of the working directory nor `GUNICORN_CMD_ARGS` is read.
"""

import logging
from typing import Any

from gunicorn.app.base import BaseApplication

from ksrv.server.settings import ServerSettings
from ksrv.server.workers.configured_repository import configured_repository
from ksrv.server.workers.gunicorn_hooks import Master
from ksrv.server.workers.lifecycle import Service


class ServerApplication(BaseApplication):  # type: ignore[misc]
    """Runs a server in this process until a signal ends it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._master = Master(settings)
        super().__init__(prog="ksrv serve")

    def load_config(self) -> None:
        """Give gunicorn its settings."""
        for name, value in self._master.options().items():
            self.cfg.set(name, value)

    def load(self) -> Service:
        """Return the WSGI callable."""
        return self._master.service


def serve(settings: ServerSettings) -> None:
    """Run a server until it ends; then raise `SystemExit`.

    Raises:
        RepositoryError: There is nothing to serve.
    """
    application: Any = ServerApplication(settings)
    logging.getLogger("ksrv").addHandler(logging.NullHandler())  # the raised error is enough output
    # Only for the check: each worker makes another repository.
    repository = configured_repository(settings)
    repository.check(
        may_be_empty=settings.model_control in ("poll", "explicit") or settings.watch_seconds > 0
    )
    application.run()

"""gunicorn's configuration as a module: `gunicorn -c python:ksrv.server.gunicorn`.

The settings come from `KSRV_*` variables and the file that `KSRV_CONFIG` names; the models from
`KSRV_MODELS`. gunicorn's own flags beat them, as they beat any configuration file.
"""

import sys

from ksrv.server.settings_sources import resolve
from ksrv.server.workers.gunicorn_hooks import Master

_RESOLVED = resolve()
for _warning in _RESOLVED.warnings:
    print(f"Warning: {_warning}", file=sys.stderr)
_MASTER = Master(_RESOLVED.settings)

application = _MASTER.service
wsgi_app = f"{__name__}:application"
globals().update(_MASTER.options())

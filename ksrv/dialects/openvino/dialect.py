"""The dialect of OpenVINO Model Server: the models of its config.json, and the routes that show and reload them."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.dialects.openvino.server_config import CONFIG_SUFFIX, read_server_config
from ksrv.repository.format import Format

if TYPE_CHECKING:
    import falcon


class _ConfigReader:
    """The `ListReader` of config.json files (`ksrv.repository.format`)."""

    suffix = CONFIG_SUFFIX
    read = staticmethod(read_server_config)


class OpenVino(Dialect):
    """See the module."""

    name = "openvino"
    format = Format(lists=_ConfigReader())

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`."""
        from ksrv.dialects.openvino.routes import ConfigResource
        from ksrv.server.rest.route_guard import Needs

        config = ConfigResource(parts.engine)
        app.add_route("/v1/config", config, needs=Needs.TOKEN)
        app.add_route("/v1/config/reload", config, suffix="reload", needs=Needs.CONTROL)


DIALECT = OpenVino()

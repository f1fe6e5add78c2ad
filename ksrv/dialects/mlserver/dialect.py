"""The dialect of MLServer: its model folders, custom runtimes that import `mlserver`, and the route infer_stream."""

from typing import Any

from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.dialects.mlserver.model_settings import SETTINGS_NAME, has_settings, read_model
from ksrv.repository.format import Format


class _Folders:
    """Reads folders of models; see `ksrv.repository.format.FolderReader`. No load call brings their settings."""

    mark = SETTINGS_NAME
    is_model = staticmethod(has_settings)
    may_be_configured = staticmethod(lambda folder: False)
    read = staticmethod(read_model)


class MLServer(Dialect):
    """See the module."""

    name = "mlserver"
    format = Format(folders=_Folders())

    def add_routes(self, app: Any, parts: AppParts) -> None:
        """See `Dialect.add_routes`. /infer_stream answers with server-sent events, whatever the client accepts."""
        from ksrv.protocol import openapi
        from ksrv.server.rest import infer, route_guard, streams

        resource = infer.InferResource(parts)
        resource.stream_type = lambda accept: streams.EVENT_STREAM
        described = openapi.INFER._replace(answer=lambda spec: {"text/event-stream": {}})
        route_guard.add_model_route(app, "/infer_stream", resource, post=described)


DIALECT = MLServer()

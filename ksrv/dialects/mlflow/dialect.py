"""The dialect of MLflow; see the package."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.dialects.mlflow.folder import MlflowFolders
from ksrv.repository.format import Format

if TYPE_CHECKING:
    import falcon


class Mlflow(Dialect):
    """See the package."""

    name = "mlflow"
    format = Format(folders=MlflowFolders())

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`. TorchServe's routes have the same paths, so its setting takes precedence."""
        from ksrv.dialects.mlflow.routes import add_routes

        if not parts.settings.torchserve_api:
            add_routes(app, parts)


DIALECT = Mlflow()

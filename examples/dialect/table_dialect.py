"""A dialect for tables: a folder with a table.csv is a model that looks up keys, and GET /tables/NAME shows its keys."""

import csv
from pathlib import Path
from typing import Any

import falcon
import numpy as np
import numpy.typing as npt

from ksrv import BaseHandler
from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.handlers.context import Context
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.spec import TensorSpec
from ksrv.repository.entry import ModelEntry
from ksrv.repository.format import Format
from ksrv.server.http.answers import send_json
from ksrv.server.rest.route_guard import Needs


class TableModel(BaseHandler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.rows = {key.encode(): float(value) for key, value in context.parameters.items()}

    def inference(self, key: npt.NDArray[np.object_]) -> dict[str, npt.NDArray[np.float64]]:
        return {"value": np.array([self.rows.get(name, np.nan) for name in key], np.float64)}


class TableFolders:
    mark = "table.csv"

    def is_model(self, folder: Path) -> bool:
        return (folder / self.mark).is_file()

    def may_be_configured(self, folder: Path) -> bool:
        return False

    def read(self, path: Path, name: str, config: str | None = None) -> ModelEntry:
        with (path / self.mark).open(newline="") as file:
            rows = dict(csv.reader(file))
        settings = ModelConfig(
            handler="table_dialect:TableModel",
            inputs=(TensorSpec("key", "BYTES", (-1,)),),
            outputs=(TensorSpec("value", "FP64", (-1,)),),
            parameters=rows,
        )
        source = ModelSource(name=name, version="", folder=path, root=path, config=settings)
        return ModelEntry(name, {"": source}, path=path)


class TableResource:
    def __init__(self, parts: AppParts) -> None:
        self.engine = parts.engine

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        send_json(resp, {"keys": sorted(self.engine.find(name).config.parameters)})


class Tables(Dialect):
    name = "tables"
    format = Format(folders=TableFolders())

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        app.add_route("/tables/{name}", TableResource(parts), needs=Needs.TOKEN)


DIALECT = Tables()

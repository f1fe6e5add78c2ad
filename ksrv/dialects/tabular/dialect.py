"""The dialect of tabular models; see the package."""

from ksrv.dialects.dialect import Dialect
from ksrv.dialects.tabular.files import TableFiles
from ksrv.repository.format import Format


class Tabular(Dialect):
    """See the package. Tabular models have no routes: clients call them as they call any model."""

    name = "tabular"
    format = Format(files=TableFiles())


DIALECT = Tabular()

"""Model repositories of Triton Inference Server: folders with a config.pbtxt, which need no conversion."""

from ksrv.dialects.dialect import Dialect
from ksrv.dialects.triton.config.ensembles import check_ensembles
from ksrv.dialects.triton.config.model_config import (
    CONFIG_NAME,
    is_triton_model,
    may_be_configured,
    read_model,
)
from ksrv.repository.format import Format


class _Folders:
    mark = CONFIG_NAME
    is_model = staticmethod(is_triton_model)
    may_be_configured = staticmethod(may_be_configured)
    read = staticmethod(read_model)


class Triton(Dialect):
    """See the module."""

    name = "triton"
    format = Format(
        folders=_Folders(),
        check=check_ensembles,
        unread={
            "model.py": "model.py is not read: a model.py of Triton's Python backend is in a version folder, such as "
            "1/model.py, and has a class TritonPythonModel"
        },
    )


DIALECT = Triton()

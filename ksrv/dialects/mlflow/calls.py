"""The names and facts that MLflow's routes and the runner exchange. The routes run in the worker, the runner in the handler process."""

from typing import TypedDict

RUNNER = "ksrv.dialects.mlflow.runner:MlflowRunner"
"""The runner of folders with an MLmodel."""
PLATFORM = "mlflow"
"""The platform in the metadata of such a model."""
SCORING = PLATFORM
"""The dialect of requests over MLflow's routes; "" is KServe v2."""
INVOCATIONS = "/invocations"
BODY = "body"
"""The only input and output of a request over MLflow's routes: a BYTES element with the whole body."""
VERSION = "mlflow_version"
"""The parameter of a `ModelSpec` with the version of MLflow in the model's interpreter."""


class ScoringCall(TypedDict):
    """The facts of a request.

    Attributes:
        content_type: The header `Content-Type`, or "".
    """

    content_type: str


class ScoringAnswer(TypedDict):
    """The facts of an answer.

    Attributes:
        status: The HTTP status.
        content_type: The media type of the body.
    """

    status: int
    content_type: str

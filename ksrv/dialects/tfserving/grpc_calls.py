"""PredictionService and ModelService over gRPC. Predict, Classify and Regress run as KServe's ModelInfer does."""

from typing import TYPE_CHECKING, Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.dialects.tfserving.examples import (
    classifications,
    example_inputs,
    examples_of,
    regressions,
)
from ksrv.dialects.tfserving.metadata import (
    PACKAGE,
    SIGNATURE_DEF,
    metadata_message,
    model_spec,
    status_message,
)
from ksrv.dialects.tfserving.model_list import reload_models
from ksrv.dialects.tfserving.predict import PredictCalls, target_of
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits
from ksrv.protocol.grpc import SpecOf
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import needs_token, parsed
from ksrv.server.grpc.services import Method, Services
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

PREDICTION, MODEL = f"{PACKAGE}.PredictionService", f"{PACKAGE}.ModelService"


def tfserving_methods(services: Services, engine: "Engine") -> dict[str, Method]:
    """Return the methods of both services by their paths."""

    def metadata(request: Any, call: Call) -> Any:
        fields = ", ".join(map(quote, sorted(set(request.metadata_field)))) or "nothing"
        if fields != quote(SIGNATURE_DEF):
            raise InvalidRequest(f"metadata_field names {fields}; expected {SIGNATURE_DEF!r}")
        return metadata_message(engine.describe(*target_of(engine, request.model_spec)))

    def status(request: Any, call: Call) -> Any:
        return status_message(engine, *target_of(engine, request.model_spec))

    def reload(request: Any, call: Call) -> Any:
        reload_models(engine, request.config)
        return message_class(f"{PACKAGE}.ReloadConfigResponse")(status={})

    parts, pool = services.parts, services.pool("tfserving", bounds.CONTROL_THREADS)
    infer = {
        "Predict": PredictCalls(parts),
        "Classify": ExampleCalls(parts, "Classification"),
        "Regress": ExampleCalls(parts, "Regression"),
    }
    check, limits = needs_token(services.access), services.settings.limits
    return {
        **{
            f"/{PREDICTION}/{name}": Method(check, limits, infer=one) for name, one in infer.items()
        },
        **services.unary(
            PREDICTION, {"GetModelMetadata": metadata}, services.call_pool, small=True
        ),
        **services.unary(MODEL, {"GetModelStatus": status}, services.call_pool, small=True),
        **services.unary(MODEL, {"HandleReloadConfigRequest": reload}, pool, control=True),
    }


class ExampleCalls(PredictCalls):
    """The calls of Classify or Regress.

    Args:
        parts: The parts that the front ends share.
        kind: The beginning of the names of the messages: "Classification" or "Regression".
    """

    form = None

    def __init__(self, parts: ServerParts, kind: str) -> None:
        super().__init__(parts)
        self._kind = kind

    def _request(
        self, message: bytes | memoryview, spec_of: SpecOf, limits: Limits
    ) -> InferRequest:
        received = parsed(message_class(f"{PACKAGE}.{self._kind}Request"), message)
        target = target_of(self._engine, received.model_spec)
        inputs = example_inputs(examples_of(received.input), {}, spec_of(*target), limits)
        return InferRequest(*target, inputs=inputs)

    def render(self, response: InferResponse, request: InferRequest, call: Call) -> list[Any]:
        """Write an answer; see `InferForm`."""
        spec = request.target.spec
        answer = message_class(f"{PACKAGE}.{self._kind}Response")(model_spec=model_spec(spec))
        answer.result.SetInParent()
        if self._kind == "Regression":
            for value in regressions(response):
                answer.result.regressions.add(value=value)
        else:
            for row in classifications(response, spec.labels):
                classes = answer.result.classifications.add().classes
                for label, score in row:
                    classes.add(label=label, score=score)
        return [answer.SerializeToString()]

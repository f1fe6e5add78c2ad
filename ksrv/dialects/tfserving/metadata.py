"""The messages about models: the signature of a model, and the states of its versions. REST answers them as JSON."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.kserve_v1.models import version_status
from ksrv.dialects.numbered_versions import number_of
from ksrv.dialects.tfserving.predict_message import NUMBERS
from ksrv.errors import NotFound, quote
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol.protobuf import message_class, pool

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

PACKAGE = "tensorflow.serving"
SERVING_DEFAULT = "serving_default"
"""The name of a model's only signature. Clients may ask for any."""
SIGNATURE_DEF = "signature_def"


def model_spec(spec: ModelSpec) -> Any:
    """Return the ModelSpec of an answer."""
    made = message_class(f"{PACKAGE}.ModelSpec")(name=spec.name, signature_name=SERVING_DEFAULT)
    made.version.value = number_of(spec.version)
    return made


def metadata_message(spec: ModelSpec) -> Any:
    """Return the GetModelMetadataResponse of a model."""
    signatures = message_class(f"{PACKAGE}.SignatureDefMap")()
    signature = signatures.signature_def[SERVING_DEFAULT]
    signature.method_name = "tensorflow/serving/predict"
    for field, tensors in (signature.inputs, spec.inputs), (signature.outputs, spec.outputs):
        for tensor in tensors:
            _describe(field[tensor.name], tensor)
    answer = message_class(f"{PACKAGE}.GetModelMetadataResponse")(model_spec=model_spec(spec))
    answer.metadata[SIGNATURE_DEF].Pack(signatures)
    return answer


def _describe(field: Any, tensor: TensorSpec) -> None:
    field.name = f"{tensor.name}:0"
    field.dtype = NUMBERS[tensor.datatype]
    field.tensor_shape.SetInParent()
    for size in tensor.wire_shape:
        field.tensor_shape.dim.add(size=size)


def status_message(engine: "Engine", name: str, version: str = "") -> Any:
    """Return the GetModelStatusResponse of a model, the highest version first.

    Args:
        version: The only version, or "" for all.

    Raises:
        NotFound: The model or version is unknown.
    """
    states = [state for state in engine.index() if state.name == name]
    states = [state for state in states if version in ("", state.version)]
    if not states:
        shown = f"version {quote(version)} of the model" if version else "model"
        raise NotFound(f"the {shown} {quote(name)} is unknown; GET /v1/models lists the models")
    answer = message_class(f"{PACKAGE}.GetModelStatusResponse")()
    for state in reversed(states):
        entry = version_status(state) | {"version": number_of(state.version)}
        answer.model_version_status.add(**entry)
    return answer


def document_of(message: Any, *, underscores: bool = True) -> dict[str, Any]:
    """Return the JSON of a message.

    Args:
        underscores: Whether keys are protobuf's names, as in TensorFlow Serving, or without underscores.
    """
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        message,
        preserving_proto_field_name=underscores,
        always_print_fields_with_no_presence=True,
        descriptor_pool=pool(),
    )

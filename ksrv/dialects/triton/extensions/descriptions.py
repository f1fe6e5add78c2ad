"""The extensions model configuration and statistics: a model as a config.pbtxt, and counts of its requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.dialects.triton.config.configuration import as_document
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol.metadata import SERVER_NAME, Document, to_message
from ksrv.protocol.openapi import Operation
from ksrv.server.grpc.calls import Behavior
from ksrv.server.rest.json_resource import JsonResource
from ksrv.server.rest.route_guard import Needs, add_model_route
from ksrv.server.shared.parts import ServerParts
from ksrv.statistics import Duration, ModelStatistics

if TYPE_CHECKING:
    import falcon


def add_routes(app: "falcon.App[Any, Any]", parts: ServerParts) -> None:
    """Add the REST routes to an app."""

    def config(name: str, version: str = "") -> Any:
        spec = parts.engine.describe(name, version)
        # With every field, as Triton's REST route has it, except for messages that are not set.
        return as_document(to_message("inference.ModelConfig", configuration(spec)))

    def stats(name: str = "", version: str = "") -> Any:
        return statistics_document(parts.statistics.models(name, version))

    resource = JsonResource(stats)
    described = {"get": Operation("All statistics", "server")}
    app.add_route("/v2/models/stats", resource, needs=Needs.TOKEN, described=described)
    add_model_route(app, "/stats", resource, get=Operation("The model's statistics"))
    add_model_route(app, "/config", JsonResource(config), get=Operation("Configuration"))


def calls(parts: ServerParts) -> dict[str, Behavior]:
    """Return the gRPC calls by name."""

    def config(request: Any, call: Call) -> Any:
        document = configuration(parts.engine.describe(request.name, request.version))
        return to_message("inference.ModelConfigResponse", {"config": document})

    def stats(request: Any, call: Call) -> Any:
        found = parts.statistics.models(request.name, request.version)
        return to_message("inference.ModelStatisticsResponse", statistics_document(found))

    return {"ModelConfig": config, "ModelStatistics": stats}


def configuration(spec: ModelSpec) -> Document:
    """Describe a model in the form of Triton's configuration.

    The shapes of a model that batches have no batch dimension. A Triton model is described by its config.pbtxt,
    completed with the tensors and the device of the loaded model.
    """
    declared = spec.configuration or {}  # only Triton models have it
    rows = spec.max_batch_size or spec.row_limit
    batches = rows > 0
    document: Document = {
        "name": spec.name,
        "platform": spec.platform,
        "backend": SERVER_NAME,
        "max_batch_size": rows,
        "model_transaction_policy": {"decoupled": False},
        "parameters": {
            name: {"string_value": value if isinstance(value, str) else repr(value)}
            for name, value in spec.parameters.items()
            if isinstance(value, str | int | float | bool)
        },
    }
    if spec.sequences is not None:
        document["sequence_batching"] = {
            "max_sequence_idle_microseconds": spec.sequences.idle_timeout_ms * 1000,
            "oldest": {"max_candidate_sequences": spec.sequences.max},
        }
    elif spec.max_batch_size:
        document["dynamic_batching"] = {}
    if declared:
        document = {**declared, "instance_group": _instance_groups(declared, spec.device)}
    sides = (("input", spec.inputs), ("output", spec.outputs))
    return document | {
        side: _config_tensors(tensors, declared.get(side, ()), batches) for side, tensors in sides
    }


def _config_tensors(
    tensors: Sequence[TensorSpec], keys: Iterable[Mapping[str, Any]], batches: bool
) -> list[Document]:
    """Return inputs or outputs. Keys that the config.pbtxt has take precedence."""
    declared = {tensor["name"]: tensor for tensor in keys}
    return [
        {
            "name": tensor.name,
            "data_type": f"TYPE_{'STRING' if tensor.datatype == 'BYTES' else tensor.datatype}",
            **({"format": "FORMAT_NHWC"} if tensor.image is not None and batches else {}),
            "dims": tensor.wire_shape[1 if batches and tensor.batched else 0 :],
            **({"optional": True} if tensor.may_be_left_out else {}),
            **{key: value for key, value in declared.get(tensor.name, {}).items() if value != []},
        }
        for tensor in tensors
    ]


def _instance_groups(declared: Mapping[str, Any], device: str) -> list[Document]:
    """Return the instance groups of a config.pbtxt, with KIND_AUTO replaced by the kind of the loaded device."""
    kind = "KIND_CPU" if device.partition(":")[0] == "cpu" else "KIND_GPU"
    return [
        group | {"kind": kind} if group["kind"] == "KIND_AUTO" else group
        for group in declared.get("instance_group", ())
    ]


def statistics_document(statistics: Iterable[ModelStatistics]) -> Document:
    """Return the statistics of models in Triton's form."""
    return {"model_stats": [_statistics(entry) for entry in statistics]}


def _statistics(entry: ModelStatistics) -> Document:
    return {
        "name": entry.name,
        "version": entry.version,
        "last_inference": entry.last_inference_ms,
        "inference_count": entry.inference_count,
        "execution_count": entry.execution_count,
        "inference_stats": {
            **_durations(entry, "success", "fail", "queue", *_COMPUTE),
            "cache_hit": _duration(entry.cached.get("hit", Duration())),
            "cache_miss": _duration(entry.cached.get("miss", Duration())),
        },
        "batch_stats": [
            {"batch_size": rows, **_durations(batch, *_COMPUTE)}
            for rows, batch in sorted(entry.batches.items())
        ],
        "memory_usage": [],
        "response_stats": {},
    }


_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def _durations(entry: object, *names: str) -> Document:
    return {name: _duration(getattr(entry, name)) for name in names}


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}

"""The keys of `config.pbtxt` that ksrv reads, as msgspec structs with Triton's documented names.

Keys that ksrv ignores are read as well, because a model's configuration shows them. A key that is `Any` is refused, and so
is not checked further.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ksrv._native.tensor import datatype
from ksrv.errors import did_you_mean
from ksrv.model.spec import LARGEST_SIZE
from ksrv.repository.yaml_document import Custom, describe

DATA_TYPES = {"TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": name for name in datatype.NAMES}
"""The datatypes' names in KServe v2, by Triton's names."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Dim: TypeAlias = Annotated[int, Meta(ge=-1, le=LARGEST_SIZE)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Uint32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of config.pbtxt."""


class MapEntry(Message):
    """An entry of a map: its `key` and its `value`."""


class DataType(str, Custom):
    """A datatype as config.pbtxt writes it: TYPE_FP32."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> "DataType":
        """Return the datatype's name in KServe v2."""
        if isinstance(value, str) and value in DATA_TYPES:
            return cls(DATA_TYPES[value])
        raise ValueError(
            f"expected one of {', '.join(DATA_TYPES)}, found {describe(value)}"
            f"{did_you_mean(value, DATA_TYPES)}"
        )


class Reshape(Message):
    """The shape of a tensor in the model itself."""

    shape: list[Dim] = []


class TensorKeys(Message):
    """An input or output."""

    name: Text
    data_type: DataType | None = None
    dims: Annotated[list[Dim], Meta(max_length=datatype.MAX_RANK)] = []
    reshape: Reshape | None = None
    is_shape_tensor: bool | None = None
    is_non_linear_format_io: bool | None = None


class InputKeys(TensorKeys):
    """An input."""

    format: Literal["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"] | None = None
    allow_ragged_batch: bool | None = None
    optional: bool | None = None


class OutputKeys(TensorKeys):
    """An output."""

    label_filename: Text | None = None


class Latest(Message):
    """The versions with the highest numbers."""

    num_versions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class Every(Message):
    """All versions."""


class Specific(Message):
    """Versions by number."""

    versions: Annotated[list[Annotated[int, Meta(ge=0, lt=10**18)]], Meta(min_length=1)]


class VersionPolicyKeys(Message):
    """Which versions are served; one of the keys."""

    latest: Latest | None = None
    all: Every | None = None
    specific: Specific | None = None


class QueuePolicy(Message):
    """How long the queue may get, and how long a request may stay in it."""

    timeout_action: Literal["REJECT", "DELAY"] | None = None
    default_timeout_microseconds: Whole | None = None
    allow_timeout_override: bool | None = None
    max_queue_size: Uint32 | None = None


class PriorityPolicy(MapEntry):
    """The queue policy of one priority."""

    key: Whole
    value: QueuePolicy = msgspec.field(default_factory=QueuePolicy)


class DynamicBatching(Message):
    """How requests are joined."""

    preferred_batch_size: list[Annotated[int, Meta(ge=1, le=2**31 - 1)]] | None = None
    max_queue_delay_microseconds: Whole | None = None
    preserve_ordering: bool | None = None
    priority_levels: Whole | None = None
    default_priority_level: Whole | None = None
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: list[PriorityPolicy] | None = None


class Resource(Message):
    """A resource that an instance needs while it runs."""

    name: str | None = None
    is_global: bool | None = msgspec.field(name="global", default=None)
    count: Uint32 | None = None


class RateLimiter(Message):
    """When an instance may run."""

    resources: list[Resource] | None = None
    priority: Uint32 | None = None


class InstanceGroup(Message):
    """Instances on devices of one kind."""

    name: str | None = None
    kind: Literal["KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL"] | None = None
    count: Annotated[int, Meta(ge=1, le=1024)] | None = None
    gpus: list[Annotated[int, Meta(ge=0, le=9999)]] | None = None
    rate_limiter: RateLimiter | None = None
    secondary_devices: Any = None
    profile: list[str] | None = None
    passive: bool | None = None
    host_policy: str | None = None


class NameMap(MapEntry):
    """A name in a model and the tensor of the ensemble that it is bound to."""

    key: Text
    value: Text


class Step(Message):
    """One model of an ensemble."""

    model_name: Text
    model_version: Annotated[int, Meta(ge=-1, lt=10**18)] = -1
    input_map: list[NameMap] = []
    output_map: list[NameMap] = []
    model_namespace: str | None = None


class EnsembleScheduling(Message):
    """The models of an ensemble."""

    step: Annotated[list[Step], Meta(max_length=1024)] = []
    max_inflight_requests: Uint32 | None = None


class ParameterValue(Message):
    """The value of a parameter."""

    string_value: str = ""


class ParameterEntry(MapEntry):
    """One parameter of the backend."""

    key: Text
    value: ParameterValue = msgspec.field(default_factory=ParameterValue)


class ResponseCache(Message):
    """Whether answers are given again."""

    enable: bool | None = None


class TransactionPolicy(Message):
    """Whether a request may have any number of answers."""

    decoupled: bool | None = None


class Control(Message):
    """The meaning of a control input."""

    kind: Literal[
        "CONTROL_SEQUENCE_START",
        "CONTROL_SEQUENCE_READY",
        "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    ] = "CONTROL_SEQUENCE_START"
    int32_false_true: list[Int32] | None = None
    fp32_false_true: list[float] | None = None
    bool_false_true: list[bool] | None = None
    data_type: DataType | None = None


class ControlInput(Message):
    """An input that tells of sequences."""

    name: Text
    control: list[Control] = []


class InitialState(Message):
    """How a state begins."""

    data_type: DataType | None = None
    dims: Annotated[list[Dim], Meta(max_length=datatype.MAX_RANK)] | None = None
    zero_data: bool | None = None
    data_file: Text | None = None
    name: str | None = None


class State(Message):
    """A tensor that goes from one request of a sequence to the next."""

    input_name: Text
    output_name: Text
    data_type: DataType
    dims: Annotated[list[Dim], Meta(min_length=1, max_length=datatype.MAX_RANK)]
    initial_state: Annotated[list[InitialState], Meta(max_length=1)] | None = None
    use_same_buffer_for_input_output: bool | None = None
    use_growable_memory: bool | None = None


class DirectStrategy(Message):
    """Each sequence has a slot of a batch."""

    max_queue_delay_microseconds: Whole | None = None
    minimum_slot_utilization: float | None = None


class OldestStrategy(Message):
    """The oldest requests of several sequences are joined."""

    max_candidate_sequences: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    preferred_batch_size: list[Annotated[int, Meta(ge=1, le=2**31 - 1)]] | None = None
    max_queue_delay_microseconds: Whole | None = None
    preserve_ordering: bool | None = None


class SequenceBatching(Message):
    """Requests belong to sequences."""

    direct: DirectStrategy | None = None
    oldest: OldestStrategy | None = None
    max_sequence_idle_microseconds: Whole | None = None
    control_input: Annotated[list[ControlInput], Meta(max_length=64)] | None = None
    state: Annotated[list[State], Meta(max_length=1024)] | None = None
    iterative_sequence: bool | None = None


class TextEntry(MapEntry):
    """An entry of a map of texts."""

    key: Text
    value: str = ""


class Graph(Message):
    """How far a framework optimizes its graph."""

    level: Int32 | None = None


class GraphShape(Message):
    """The shape of an input of a CUDA graph."""

    dim: list[Dim] | None = None


class GraphInput(MapEntry):
    """An input of a CUDA graph."""

    key: Text
    value: GraphShape = msgspec.field(default_factory=GraphShape)


class LowerBound(Message):
    """The smallest batch for which a CUDA graph is used."""

    batch_size: Int32 | None = None
    input: list[GraphInput] | None = None


class GraphSpec(Message):
    """A batch for which a CUDA graph is recorded."""

    batch_size: Int32 | None = None
    input: list[GraphInput] | None = None
    graph_lower_bound: LowerBound | None = None


class Cuda(Message):
    """CUDA's settings."""

    graphs: bool | None = None
    busy_wait_events: bool | None = None
    graph_spec: list[GraphSpec] | None = None
    output_copy_stream: bool | None = None


class Accelerator(Message):
    """An accelerator of ONNX Runtime's."""

    name: str | None = None
    parameters: list[TextEntry] | None = None


class ExecutionAccelerators(Message):
    """The accelerators on each kind of device."""

    gpu_execution_accelerator: list[Accelerator] | None = None
    cpu_execution_accelerator: list[Accelerator] | None = None


class PinnedMemory(Message):
    """Whether tensors are copied by way of pinned memory."""

    enable: bool | None = None


class Optimization(Message):
    """How a model is made faster."""

    graph: Graph | None = None
    priority: Literal["PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"] | None = None
    cuda: Cuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemory | None = None
    output_pinned_memory: PinnedMemory | None = None
    gather_kernel_buffer_threshold: Uint32 | None = None
    eager_batching: bool | None = None


class WarmupInput(Message):
    """The data of an input of a warm-up request."""

    data_type: DataType | None = None
    dims: Annotated[list[Dim], Meta(max_length=datatype.MAX_RANK)] | None = None
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class WarmupEntry(MapEntry):
    """An input of a warm-up request."""

    key: Text
    value: WarmupInput = msgspec.field(default_factory=WarmupInput)


class Warmup(Message):
    """A request that a model runs before it is ready."""

    name: str | None = None
    batch_size: Uint32 | None = None
    inputs: list[WarmupEntry] | None = None
    count: Uint32 | None = None


class MetricIdentifier(Message):
    """The name of a metric."""

    family: str | None = None


class HistogramOptions(Message):
    """The buckets of a histogram."""

    buckets: list[float] | None = None


class MetricControl(Message):
    """The form of one metric."""

    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


class ModelMetrics(Message):
    """The forms of a model's metrics."""

    metric_control: list[MetricControl] | None = None


class ModelKeys(Message):
    """The keys of a model."""

    name: str | None = None
    platform: str | None = None
    backend: str | None = None
    runtime: str | None = None
    default_model_filename: str | None = None
    max_batch_size: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    input: Annotated[list[InputKeys], Meta(max_length=4096)] | None = None
    output: Annotated[list[OutputKeys], Meta(max_length=4096)] | None = None
    version_policy: VersionPolicyKeys | None = None
    dynamic_batching: DynamicBatching | None = None
    instance_group: list[InstanceGroup] | None = None
    ensemble_scheduling: EnsembleScheduling | None = None
    parameters: list[ParameterEntry] | None = None
    response_cache: ResponseCache | None = None
    model_transaction_policy: TransactionPolicy | None = None
    optimization: Optimization | None = None
    model_warmup: list[Warmup] | None = None
    metric_tags: list[TextEntry] | None = None
    model_metrics: ModelMetrics | None = None
    sequence_batching: SequenceBatching | None = None
    batch_input: Any = None
    batch_output: Any = None
    cc_model_filenames: Any = None
    model_operations: Any = None
    model_repository_agents: Any = None

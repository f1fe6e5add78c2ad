"""The keys of `model.yaml` as msgspec structs: their types, bounds and meanings.

`Document.convert` fills the structs, and `json_schema` makes the schema for editors of them. A key
that is None was left out or left empty; `ModelConfig` and `ImageSpec` know the defaults.
"""

from dataclasses import fields as fields_of
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ksrv._native.tensor import datatype
from ksrv._native.tensor.datatype import MAX_RANK
from ksrv.repository.yaml_document import Custom, Number, Numbers, describe, near
from ksrv.source import Batching, Cache, ExecutorName, ModelConfig, Precision, Role
from ksrv.spec import (
    LARGEST_SIZE,
    Color,
    ImageSpec,
    OutputImageSpec,
    SequenceLimits,
    read_dimension,
)

BUILT_IN_HANDLERS = (
    "image_classifier",
    "image_segmenter",
    "object_detector",
    "text_classifier",
    "text_encoder",
)
LARGEST = LARGEST_SIZE

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]
MillisecondsOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]


class Size(Custom):
    """One dimension of a declared shape.

    Attributes:
        value: A positive number, -1 for any size, or an inclusive range (low, high).
    """

    schema = {
        "anyOf": [
            {"type": "integer", "minimum": -1, "maximum": LARGEST, "not": {"const": 0}},
            {"type": "string", "pattern": "^[0-9]{1,10}:[0-9]{1,10}$"},
        ]
    }

    def __init__(self, value: int | tuple[int, int]) -> None:
        self.value = value

    @classmethod
    def read(cls, value: object) -> "Size":
        """Return the dimension that a YAML value stands for."""
        size = read_dimension(value)
        if size is None:
            raise ValueError(
                f'expected a positive number, -1 or a range "100:200", found {describe(value)}'
            )
        return cls(size)


class Datatype(str, Custom):
    """The name of a KServe v2 datatype."""

    __slots__ = ()
    schema = {"enum": list(datatype.NAMES)}

    @classmethod
    def read(cls, value: object) -> "Datatype":
        """Return the datatype that a YAML value names."""
        if isinstance(value, str) and datatype.is_datatype(value):
            return cls(value)
        raise ValueError(
            f"expected one of {', '.join(datatype.NAMES)}, found {describe(value)}"
            f"{near(value, datatype.NAMES)}"
        )


class Reduced(str, Custom):
    """Whether large JPEGs are decoded at a fraction of their size."""

    __slots__ = ()
    schema = {"enum": ["off", "auto", False]}

    @classmethod
    def read(cls, value: object) -> "Reduced":
        """Return the word; YAML takes a bare `off` for false."""
        if value is False or value in ("off", "auto"):
            return cls(value or "off")
        raise ValueError(f"expected one of off, auto, found {describe(value)}")


class Scale(Number):
    """The divisor of an image's values."""

    low, high = 1e-12, 1e12


class Delay(Number):
    """Milliseconds that a request may wait for its batch."""

    low, high = 0.0, 3_600_000.0


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mapping of model.yaml."""


def _means(text: str) -> Meta:
    return Meta(description=text)


class ImageSection(Section):
    """How encoded images become rows of an input."""

    color: Color | None = None
    channels: (
        Annotated[Literal["strict", "convert"], _means("strict refuses images with other channels")]
        | None
    ) = None
    exif: Literal["ignore", "apply"] | None = None
    resize: Literal["linear", "area", "pillow", "letterbox", "none"] | None = None
    shorter_side: (
        Annotated[int, Meta(ge=1, le=65_535), _means("Resize this side, then crop the middle")]
        | None
    ) = None
    scale: Annotated[Scale, _means("(x / scale - mean) / std")] | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    arithmetic: (
        Annotated[
            Literal["fast", "exact"], _means("exact: float operations in torchvision's order")
        ]
        | None
    ) = None
    reduced: (
        Annotated[Reduced, _means("auto decodes large JPEGs at a fraction of their size")] | None
    ) = None
    formats: (
        Annotated[list[Literal["jpeg", "png", "webp", "bmp", "tiff", "gif"]], Meta(min_length=1)]
        | None
    ) = None
    model_layout: (
        Annotated[Literal["NHWC", "NCHW"], _means("The layout that the handler sees")] | None
    ) = None


class TensorSection(Section):
    """A declared tensor."""

    name: Text
    datatype: Datatype
    shape: Annotated[
        list[Size],
        Meta(max_length=MAX_RANK, extra={"expected": "a list of dimensions"}),
        _means('Each a number, -1 for any size, or a range "100:200"; -1 first is the batch'),
    ]


class InputSection(TensorSection):
    """A declared input."""

    image: ImageSection | None = None
    optional: Annotated[
        bool, _means("A request may leave the input out; the handler then gets None")
    ] = False


class OutputImageSection(Section):
    """How rows of an output are encoded for clients that ask for images."""

    color: (
        Annotated[Literal["RGB", "BGR"], _means("The order of colours in the last dimension")]
        | None
    ) = None
    formats: Annotated[list[Literal["png", "jpeg"]], Meta(min_length=1)] | None = None
    quality: (
        Annotated[int, Meta(ge=1, le=100), _means("Of a JPEG, unless the client names one")] | None
    ) = None


class OutputSection(TensorSection):
    """A declared output."""

    image: OutputImageSection | None = None


class BatchingSection(Section):
    """How requests are joined to batches."""

    max_batch_size: Annotated[int, Meta(ge=1, le=1_000_000), _means("Rows that a batch may hold")]
    max_delay_ms: (
        Annotated[Delay, _means("How long the oldest request waits for a full batch")] | None
    ) = None
    split: (
        Annotated[bool, _means("Split a request with more rows instead of refusing it")] | None
    ) = None


BatchingKey: TypeAlias = Annotated[
    # YAML takes a bare `off` for false.
    BatchingSection | Literal["off"] | Annotated[bool, Meta(extra_json_schema={"enum": [False]})],
    Meta(extra={"expected": "off, or keys and values such as {max_batch_size: 8}"}),
    _means("off: requests have no rows, and shapes are whole"),
]


class Seconds(Number):
    """Seconds for which an answer is given again."""

    low, high = 0.001, 31_536_000.0


class CacheSection(Section):
    """Answers that are given again to the same request; `{}` has all defaults."""

    entries: Annotated[int, Meta(ge=1, le=10_000_000), _means("Answers that are kept")] | None = (
        None
    )
    bytes: (
        Annotated[int, Meta(ge=1, le=2**40), _means("Bytes of tensors that they may hold")] | None
    ) = None
    ttl_s: Annotated[Seconds, _means("Seconds for which an answer is given again")] | None = None


class SequencesSection(Section):
    """Requests belong to sequences, each with a state; `{}` has all defaults."""

    max: Annotated[int, Meta(ge=1, le=1_000_000), _means("Sequences that may be open")] | None = (
        None
    )
    idle_timeout_ms: (
        Annotated[Milliseconds, _means("How long a sequence waits for its next request")] | None
    ) = None


class VersionSection(Section):
    """Which versions are served, by number; one of the two keys."""

    latest: (
        Annotated[int, Meta(ge=1, le=1_000_000), _means("How many of the highest versions")] | None
    ) = None
    specific: (
        Annotated[
            list[Annotated[int, Meta(ge=0, lt=10**18)]],
            Meta(min_length=1, extra={"expected": "a list of versions, {specific: [N, ...]}"}),
        ]
        | None
    ) = None


VersionPolicyKey: TypeAlias = Annotated[
    Literal["all"] | VersionSection,
    Meta(extra={"expected": "all, {latest: N} or {specific: [N, ...]}"}),
]


class SharedKeys(Section):
    """The keys that mean the same in every model.yaml."""

    device: (
        Annotated[
            str,
            Meta(
                pattern="^(auto|cpu|mps|xla|(cuda|xpu)(:[0-9]{1,4}(,[0-9]{1,4}){0,63})?)$",
                extra={"expected": "auto, cpu, cuda, cuda:N, cuda:N,M, mps, xpu or xla"},
            ),
        ]
        | None
    ) = None
    batching: BatchingKey | None = None
    retry: Annotated[bool, _means("Try a batch whose process died once more")] | None = None
    instances: Annotated[int, Meta(ge=1, le=1024), _means("Handlers side by side")] | None = None
    threads: (
        Annotated[
            int, Meta(ge=0, le=4096), _means("CPU threads of an instance; 0 shares the cores out")
        ]
        | None
    ) = None
    timeout_ms: Annotated[Milliseconds, _means("From a request's arrival to its answer")] | None = (
        None
    )
    run_timeout_ms: (
        Annotated[
            MillisecondsOrNone,
            _means("executor: process, for one batch; 0: as long as its requests may take"),
        ]
        | None
    ) = None
    start_timeout_ms: (
        Annotated[Milliseconds, _means("executor: process, until it is ready")] | None
    ) = None
    queue_size: (
        Annotated[int, Meta(ge=1, le=1_000_000), _means("How many requests may wait")] | None
    ) = None
    rate_limit: (
        Annotated[
            float, Meta(ge=0, le=1_000_000_000), _means("Requests a second; 0 for any number")
        ]
        | None
    ) = None
    max_concurrency: (
        Annotated[int, Meta(ge=0, le=1_000_000), _means("Requests at a time; 0 for any number")]
        | None
    ) = None
    envelope: Annotated[Text, _means("The request envelope of TorchServe's routes")] | None = None
    env: (
        Annotated[
            dict[Any, Any],
            _means("Environment variables of the handler's process"),
            Meta(extra={"expected": "variables and their values"}),
        ]
        | None
    ) = None


class ModelKeys(SharedKeys):
    """The settings of a model."""

    handler: (
        Annotated[
            Text,
            _means(f"FILE.py[:NAME], package.module:NAME, or {', '.join(BUILT_IN_HANDLERS)}"),
        ]
        | None
    ) = None
    model: (
        Annotated[Text, _means("A .pt, .pth, .safetensors, .pt2, .so, .onnx or .xml file")] | None
    ) = None
    model_class: (
        Annotated[Text, _means("FILE.py:NAME of the torch module that a state_dict fills")] | None
    ) = msgspec.field(name="class", default=None)
    inputs: list[InputSection] | None = None
    outputs: list[OutputSection] | None = None
    labels: (
        Annotated[Text, _means("A JSON object or list, or a text with one label a line")] | None
    ) = None
    executor: (
        Annotated[ExecutorName, _means("process: a process of its own for each instance")] | None
    ) = None
    python: (
        Annotated[
            Text, _means("executor: process, its interpreter, or the folder of its environment")
        ]
        | None
    ) = None
    requirements: (
        Annotated[
            Text, _means("executor: process, a requirements file, whose packages are its own")
        ]
        | None
    ) = None
    warmup: (
        Annotated[
            bool | Annotated[list[Text], Meta(min_length=1)],
            Meta(extra={"expected": "true, false or a list of sample files"}),
        ]
        | None
    ) = None
    cache: Annotated[CacheSection, _means("Give the same request the same answer")] | None = None
    sequences: (
        Annotated[SequencesSection, _means("Serve sequences of requests, each with a state")] | None
    ) = None
    concurrent_batches: (
        Annotated[
            int,
            Meta(ge=1, le=65_536),
            _means("Batches an instance runs at a time, where its handler has coroutines"),
        ]
        | None
    ) = None
    version_policy: VersionPolicyKey | None = None
    parameters: Annotated[dict[Any, Any], _means("The handler's context.parameters")] | None = None
    pt2: (
        Annotated[
            dict[Any, Any] | str,
            _means("{compile: {enable, backend, mode, dynamic, fullgraph, options}, required}"),
            Meta(extra={"expected": "keys and values"}),
        ]
        | None
    ) = None
    role: (
        Annotated[Role, _means("What OpenAI's routes ask it for: /v1/embeddings, or /v1/rerank")]
        | None
    ) = None
    cuda_graphs: (
        Annotated[bool, _means("Record the launches of a torch model on CUDA and replay them")]
        | None
    ) = None
    matmul_precision: (
        Annotated[Precision, _means("torch.set_float32_matmul_precision, for the whole process")]
        | None
    ) = None


class UnpackedKeys(SharedKeys):
    """The settings of a folder that holds the files of a TorchServe archive."""

    torchserve: Annotated[bool, _means("Whether the folder holds an archive's files")] | None = None
    timeout_ms: MillisecondsOrNone | None = None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `model.yaml`, draft 2020-12."""
    kinds = (ModelKeys, UnpackedKeys)
    [(plain, unpacked), sections] = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    defaults = {
        "ModelKeys": dict(_defaults(ModelConfig)),
        "BatchingSection": dict(_defaults(Batching)),
        "CacheSection": dict(_defaults(Cache)),
        "SequencesSection": dict(_defaults(SequenceLimits)),
        "ImageSection": {one.name: one.default for one in fields_of(ImageSpec)},
        "OutputImageSection": {one.name: one.default for one in fields_of(OutputImageSpec)},
    }
    for name, section in sections.items():
        for key, described in section["properties"].items():
            described.pop("default", None)
            default = defaults.get(name, {}).get(key)
            if default not in (None, ()):
                described["default"] = default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "model.yaml of ksrv",
        "if": {"required": ["torchserve"]},
        "then": unpacked,
        "else": plain,
        "$defs": sections,
    }


def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [
        (one.encode_name, one.default)
        for one in msgspec.structs.fields(kind)
        if isinstance(one.default, (str, int, float))
    ]


def _schema_of(kind: type) -> dict[str, Any]:
    assert issubclass(kind, Custom)
    if issubclass(kind, Number):
        return {**kind.schema, "minimum": kind.low, "maximum": kind.high}
    return kind.schema

"""The description of a model for clients and the engine: a `ModelSpec`, with a `TensorSpec` for each input and output.

Parsers, validation, metadata and batching use it. `ModelConfig.spec` makes it from model.yaml, and the load completes
it from the model file. `Key` declares which settings are keys of model.yaml.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Dimension: TypeAlias = int | tuple[int, int]
"""A size, -1 for any size, or an inclusive range (low, high)."""

LARGEST_SIZE = 2**31 - 1

LARGEST_SIDE = 65_535
"""The largest height or width that `image:` can name, in pixels."""

ANY_SIZE: tuple[int, int] = (1, LARGEST_SIZE)
"""A first dimension of any size that does not count rows, as -1 would: in a model without a batch dimension."""

ANY_SIZE_OR_NONE: tuple[int, int] = (0, LARGEST_SIZE)
"""Like `ANY_SIZE`, but the tensor may be empty."""

_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


class Key:
    """Declares that a field of a settings struct is a key of model.yaml: `split: Annotated[bool, Key()] = False`.

    This is the only declaration of the key: `ksrv.repository.settings.keys` makes the reader of the YAML and the JSON
    schema from it. The description of the field in the struct's docstring is the meaning that users read. msgspec
    ignores the annotation, so the bounds apply only to model.yaml; the reader of another format may exceed them.

    Args:
        name: The key, if it is not the field's name.
        written: The type in model.yaml, if it is not the field's.
        expected: How errors describe the values that fit, if the type alone does not describe them.
        shared: Whether a model.yaml beside the files of another server's archive may have the key, too.
        bounds: The bounds of the value, as arguments of `msgspec.Meta`.
    """

    def __init__(
        self,
        *,
        name: str = "",
        written: Any = None,
        expected: str = "",
        shared: bool = False,
        **bounds: Any,
    ) -> None:
        if expected:
            bounds["extra"] = {"expected": expected}
        self.bounds = bounds
        self.name = name
        self.written = written
        self.shared = shared
        self.meta = Meta(**bounds) if bounds else None


_LENGTH = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def is_length_name(value: object) -> bool:
    """Tell whether an entry of a declared shape is the name of a length, as in `[-1, ids]`."""
    return isinstance(value, str) and len(value) <= 255 and _LENGTH.fullmatch(value) is not None


_CONTENT_TYPE = re.compile(
    r"(?:(?:audio|font|image|model|video)/(?!svg)|text/(?=(?:csv|plain)(?:;|$))|application/(?!(?:.+\+)?(?:javascript|json|xml)(?:;|$)))"
    r"[a-z0-9][a-z0-9.+-]{0,126}(?: *; *[a-z0-9-]+=[a-z0-9._-]+)*",
    re.IGNORECASE,
)


def is_content_type(value: object) -> bool:
    """Tell whether a value is a content type that an output may have: of files in which browsers run no scripts.

    JSON is excluded, because an answer in JSON has another form.
    """
    return (
        isinstance(value, str) and len(value) <= 255 and _CONTENT_TYPE.fullmatch(value) is not None
    )


def read_dimension(value: object) -> Dimension | None:
    """Return the dimension for a value, or None if it is not a dimension.

    Args:
        value: A positive number, -1 for any size, or a range "100:200".
    """
    ends = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if ends and 0 < int(ends[1]) <= int(ends[2]) <= LARGEST_SIZE:
        return int(ends[1]), int(ends[2])
    if type(value) is int and (value == -1 or 0 < value <= LARGEST_SIZE):
        return value
    return None


def file_problem(content_type: str, datatype: str, shape: tuple[Dimension, ...]) -> str:
    """Return why an output cannot have a content type; "" if it can."""
    if not is_content_type(content_type):
        return (
            f"expected the media type of a file, such as audio/wav, image/png or application/octet-stream, found "
            f"{content_type!r}; HTML, SVG, XML and JSON are not sent as files"
        )
    if datatype != "BYTES":
        return f"a file is an element of BYTES, and the output has {datatype}"
    if any(size not in (1, -1, ANY_SIZE) for size in shape):
        return "an output of files has one element for each row: its shape is [-1]"
    return ""


Color: TypeAlias = Literal["RGB", "BGR", "GRAY"]


class ImageSpec(msgspec.Struct, frozen=True):
    """How encoded images become rows of an input.

    The defaults are for an input without an `image:` section: OpenVINO Model Server's meaning
    (decoded unchanged, BGR, cast to the datatype, then resized linearly, no normalisation).

    Attributes:
        channels: strict refuses images with other channels.
        resize: linear resizes numbers of the datatype; opencv and area resize pixels, as cv2.resize does.
        shorter_side: Resize this side, then crop the middle; without a crop if height and width are open.
        resize_to: Resize to this height and width, then crop the middle.
        min_side: With an open height and width: enlarge images whose shorter side is shorter.
        max_side: With an open height and width: shrink images whose longer side is longer.
        multiple: Open sizes are multiples of it.
        rounding: How sizes become whole pixels. By default nearest for a letterbox, and down otherwise.
        pad: The border of a letterbox, before scale, mean and std: a number, or one for each channel.
        align: The place of the image in a letterbox; start: at the top left.
        scale: (x / scale - mean) / std.
        arithmetic: exact: float operations in torchvision's order.
        reduced: auto decodes large JPEGs at a fraction of their size.
        model_layout: The layout that the handler sees.
    """

    color: Annotated[Color, Key()] = "BGR"
    channels: Annotated[Literal["strict", "convert"], Key()] = "strict"
    exif: Annotated[Literal["ignore", "apply"], Key()] = "ignore"
    resize: Annotated[Literal["linear", "opencv", "area", "pillow", "letterbox", "none"], Key()] = (
        "linear"
    )
    shorter_side: Annotated[int | None, Key(ge=1, le=LARGEST_SIDE)] = None
    scale: Annotated[float, Key(ge=1e-12, le=1e12)] = 1.0
    mean: Annotated[tuple[float, ...], Key()] = ()
    std: Annotated[tuple[float, ...], Key()] = ()
    arithmetic: Annotated[Literal["fast", "exact"], Key()] = "fast"
    reduced: Annotated[Literal["off", "auto"], Key()] = "off"
    formats: Annotated[tuple[str, ...], Key()] = ("jpeg", "png")
    model_layout: Annotated[Literal["NHWC", "NCHW"], Key()] = "NHWC"
    resize_to: Annotated[
        tuple[int, int] | None,
        Key(
            written=list[Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]],
            expected="a height and a width, [256, 256]",
            min_length=2,
            max_length=2,
        ),
    ] = None
    min_side: Annotated[int | None, Key(ge=1, le=LARGEST_SIDE)] = None
    max_side: Annotated[int | None, Key(ge=1, le=LARGEST_SIDE)] = None
    multiple: Annotated[int, Key(ge=1, le=4096)] = 1
    rounding: Annotated[Literal["nearest", "down", "up"] | None, Key()] = None
    pad: Annotated[tuple[float, ...], Key()] = (114.0,)
    align: Annotated[Literal["center", "start"], Key()] = "center"


LOWEST_RATE, HIGHEST_RATE = 1_000, 192_000
"""The samples a second that a sound file may have."""


class AudioSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How sound files become rows of an input: `{rate: 16000}` has the other defaults.

    Attributes:
        rate: Samples a second; files of another rate are resampled.
        channels: mono averages the channels; strict refuses files with several.
        window: Samples of a row; a file becomes as many rows as it needs. Without it a file is one row.
        hop: Samples from the start of a row to the start of the next; by default the window.
    """

    rate: Annotated[int, Key(ge=LOWEST_RATE, le=HIGHEST_RATE)]
    channels: Annotated[Literal["mono", "strict"], Key()] = "mono"
    window: Annotated[int | None, Key(ge=1, le=10_000_000)] = None
    hop: Annotated[int | None, Key(ge=1, le=10_000_000)] = None


class OutputImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How rows of an output are encoded for clients that ask for images.

    Attributes:
        color: The order of colours in the last dimension.
        quality: Of a JPEG, unless the client names one.
    """

    color: Annotated[Literal["RGB", "BGR"], Key()] = "RGB"
    formats: Annotated[
        tuple[str, ...],
        Key(written=list[Literal["png", "jpeg"]], min_length=1),
    ] = ("png", "jpeg")
    quality: Annotated[int, Key(ge=1, le=100)] = 90


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of different lengths are joined, each padded to the longest; `{}` has all defaults.

    Attributes:
        value: The padding value.
        multiple: Padded lengths are multiples of it.
        mask: The input that is 1 over the values and 0 over the padding.
        waste: The largest share of a padded row that is padding.
        exact: Without a mask: the answers do not depend on the padding; the warm-up checks it.
    """

    value: Annotated[int | float | bool, Key(expected="a number, true or false")] = 0
    multiple: Annotated[int, Key(ge=1, le=1_000_000)] = 1
    mask: Annotated[str, Key(min_length=1)] = ""
    waste: Annotated[float, Key(ge=0.0, le=0.99)] = 0.25
    exact: Annotated[bool, Key()] = False


def changed_keys(settings: msgspec.Struct) -> dict[str, Any]:
    """Return the keys of a section whose values are not the defaults."""
    return {
        field.name: value
        for field in msgspec.structs.fields(settings)
        if (value := getattr(settings, field.name)) != field.default
    }


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output.

    Attributes:
        name: The tensor's name on the wire.
        datatype: A KServe v2 datatype name such as "FP32".
        shape: The dimensions as clients see them: -1 first is the batch dimension; images are in NHWC order.
        image: How encoded images are prepared, or None when the input takes raw tensors only.
        audio: How sound files become rows, or None when the input takes none.
        output_image: How an output is encoded on request, or None when it is answered as numbers only.
        content_type: The type of the files that a BYTES output has as elements, such as "audio/wav"; "" for texts.
        optional: Whether a request may leave the input out; the handler then gets None.
        lengths: For each dimension of `shape` the name of its length, "" for none; empty if no
            dimension has a name. Inputs are padded along these dimensions, and outputs cut back.
        pad: How the input is padded; None for the defaults, or for an input without lengths.
        mask_of: The length that the input masks, or "". The server makes a mask that a request leaves out.
        blank: Whether null means an empty text in plain JSON, because the column of a table may lack values.
    """

    name: str
    datatype: str
    shape: tuple[Dimension, ...]
    image: ImageSpec | None = None
    audio: AudioSpec | None = None
    output_image: OutputImageSpec | None = None
    content_type: str = ""
    optional: bool = False
    lengths: tuple[str, ...] = ()
    pad: Padding | None = None
    mask_of: str = ""
    blank: bool = False

    @property
    def takes_files(self) -> bool:
        """Whether BYTES with encoded images or sounds become the input's numbers."""
        return self.image is not None or self.audio is not None

    @property
    def may_be_left_out(self) -> bool:
        """Whether a request may come without the input."""
        return self.optional or bool(self.mask_of)

    @property
    def batched(self) -> bool:
        """Whether the first dimension is free, so that rows can be joined along it."""
        return bool(self.shape) and self.shape[0] == -1

    @property
    def wire_shape(self) -> list[int]:
        """The shape for metadata: ranges become -1."""
        return [entry if isinstance(entry, int) else -1 for entry in self.shape]


def whole(tensor: TensorSpec) -> TensorSpec:
    """Return a tensor as a model without a batch dimension has it: a first dimension of -1 is a size like any other.

    Args:
        tensor: The tensor, whose first dimension may be -1.
    """
    return replace(tensor, shape=(ANY_SIZE, *tensor.shape[1:])) if tensor.batched else tensor


class SequenceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Requests belong to sequences, each with a state; `{}` has all defaults.

    Attributes:
        max: Sequences that may be open.
        idle_timeout_ms: How long a sequence waits for its next request.
        several_rows: A request may have several rows, which the handler takes one after the other.
    """

    max: Annotated[int, Key(ge=1, le=1_000_000)] = 1000
    idle_timeout_ms: Annotated[int, Key(ge=1, le=LARGEST_SIZE)] = 60_000
    several_rows: Annotated[bool, Key()] = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One version of a model, as clients and the engine see it.

    Attributes:
        version: The version's folder name, or "" for an unversioned model.
        inputs: Declared inputs. Empty means undeclared: the handler gets any tensors.
        outputs: Declared outputs; empty means whatever the handler returns.
        labels: Class labels by index for classification answers, or None.
        max_batch_size: The most rows of a batch; 0 when requests are never joined.
        row_limit: The most rows of a request, whatever a batch may have; 0 for the limit of a batch.
        counts_rows: Whether an open first dimension counts the rows of a request; else shapes are whole.
        device: The device on which the handler runs, such as "cuda:0"; "" until it is loaded.
        accepts_any_inputs: Whether any tensors reach the handler and the declared inputs are only an example, as with
            an archive of another server.
        calls_models: Whether the handler calls other models of the server.
        concurrency: Batches that an instance runs at a time if its handler has coroutines; 0 without any.
        may_stream: Whether the handler's code has generators, or sends answers in parts by other means.
        sequences: The bounds of the sequences that it serves; None if it serves none.
        role: The role in which OpenAI's routes call it: "embedding", "rerank", or "".
        configuration: The answer of the configuration call, if the model's format has a special form.
    """

    name: str
    version: str = ""
    platform: str = "ksrv"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    labels: tuple[str, ...] | None = None
    max_batch_size: int = 0
    device: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    accepts_any_inputs: bool = False
    calls_models: bool = False
    concurrency: int = 0
    may_stream: bool = False
    row_limit: int = 0
    counts_rows: bool = True
    sequences: SequenceLimits | None = None
    configuration: Mapping[str, Any] | None = None
    role: str = ""

    @property
    def required_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that every request has."""
        return tuple(spec for spec in self.inputs if not spec.may_be_left_out)

    @property
    def has_optional_inputs(self) -> bool:
        """Whether requests may leave inputs out."""
        return any(spec.optional for spec in self.inputs)

    @property
    def takes_one_value(self) -> bool:
        """Whether the default `preprocess` returns the value of the only input, not a mapping of names to values."""
        return len(self.inputs) == 1 and not self.has_optional_inputs

    def input(self, name: str) -> TensorSpec | None:
        """Return the declared input called `name`, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """Return the declared output called `name`, or None."""
        return next((spec for spec in self.outputs if spec.name == name), None)


def fits(shape: tuple[int, ...], declared: tuple[Dimension, ...]) -> bool:
    """Tell whether a tensor's shape is allowed by the declared dimensions.

    Args:
        declared: Each dimension as a size, -1 for any, or the smallest and the largest size.
    """
    return len(shape) == len(declared) and all(map(allows, declared, shape))


def allows(declared: Dimension, size: int) -> bool:
    """Tell whether a declared dimension allows a size."""
    if isinstance(declared, tuple):
        return declared[0] <= size <= declared[1]
    return declared in (-1, size)

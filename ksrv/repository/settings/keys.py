"""The keys of `model.yaml` as msgspec structs: their types, bounds and meanings.

`Document.convert` fills the structs, and `json_schema.py` makes the schema for editors of them. A key
that is None was left out or left empty; `ModelConfig` and `ImageSpec` know the defaults.
"""

from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from ksrv._native.tensor import datatype
from ksrv._native.tensor.datatype import MAX_RANK
from ksrv.errors import did_you_mean
from ksrv.model.config import Batching, Cache, ModelConfig, Recording, VersionPolicy
from ksrv.model.spec import (
    LARGEST_SIZE,
    Color,
    Key,
    Padding,
    SequenceLimits,
    is_length_name,
    read_dimension,
)
from ksrv.repository.yaml_document import Custom, Number, Numbers, describe

CONFIG_NAME = "model.yaml"
LARGEST = LARGEST_SIZE

T = TypeVar("T", bound=msgspec.Struct)
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]
MillisecondsOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]


class Size(Custom):
    """One dimension of a declared shape.

    Attributes:
        value: A positive number, -1 for any size, or an inclusive range (low, high).
        length: The name of the length that the dimension has, whose size is any; or "".
    """

    schema = {
        "anyOf": [
            {"type": "integer", "minimum": -1, "maximum": LARGEST, "not": {"const": 0}},
            {"type": "string", "pattern": "^[0-9]{1,10}:[0-9]{1,10}$"},
            {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]*$"},
        ]
    }

    def __init__(self, value: int | tuple[int, int], length: str = "") -> None:
        self.value = value
        self.length = length

    @classmethod
    def read(cls, value: object) -> "Size":
        """Return the dimension for a YAML value."""
        if isinstance(value, str) and is_length_name(value):
            return cls(-1, value)
        size = read_dimension(value)
        if size is None:
            raise ValueError(
                f'expected a positive number, -1, a range "100:200" or the name of a length, found {describe(value)}'
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
            f"{did_you_mean(value, datatype.NAMES)}"
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


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mapping of model.yaml."""


def means(text: str) -> Meta:
    """Return the annotation of a key's meaning, for the JSON schema."""
    return Meta(description=text)


class ImageSection(Section):
    """How encoded images become rows of an input."""

    color: Color | None = None
    channels: (
        Annotated[Literal["strict", "convert"], means("strict refuses images with other channels")]
        | None
    ) = None
    exif: Literal["ignore", "apply"] | None = None
    resize: Literal["linear", "area", "pillow", "letterbox", "none"] | None = None
    shorter_side: (
        Annotated[int, Meta(ge=1, le=65_535), means("Resize this side, then crop the middle")]
        | None
    ) = None
    scale: Annotated[Scale, means("(x / scale - mean) / std")] | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    arithmetic: (
        Annotated[Literal["fast", "exact"], means("exact: float operations in torchvision's order")]
        | None
    ) = None
    reduced: (
        Annotated[Reduced, means("auto decodes large JPEGs at a fraction of their size")] | None
    ) = None
    formats: (
        Annotated[list[Literal["jpeg", "png", "webp", "bmp", "tiff", "gif"]], Meta(min_length=1)]
        | None
    ) = None
    model_layout: (
        Annotated[Literal["NHWC", "NCHW"], means("The layout that the handler sees")] | None
    ) = None


SECTIONS: dict[type[msgspec.Struct], type[Section]] = {}
"""The struct to read a mapping of model.yaml into, by the struct of settings that it becomes."""


def section(
    name: str, kind: type[msgspec.Struct], *, shared: bool = False, **more: Any
) -> type[Section]:
    """Return the struct to read a mapping into whose keys the fields of a struct declare; a missing key is None.

    Args:
        name: The section's name, for the JSON schema.
        kind: The struct of settings.
        shared: Whether to read only the keys that are also allowed beside the files of another server's archive.
        more: The types of keys that the struct does not declare, or not so.
    """
    read = {}
    for field in msgspec.structs.fields(kind):
        key = key_of(kind, field.name)
        if key is None or (shared and not key.shared) or field.name in more:
            continue
        written = _written(
            get_type_hints(kind)[field.name] if key.written is None else key.written, key
        )
        encoded = key.name or field.name
        if field.required:
            read[field.name] = (written, msgspec.field(name=encoded))
        else:
            read[field.name] = (written | None, msgspec.field(name=encoded, default=None))
    read |= {one: (type_ | None, msgspec.field(default=None)) for one, type_ in more.items()}
    made: Any = msgspec.defstruct(
        name,
        [(one, *rest) for one, rest in read.items()],
        bases=(Section,),
        namespace={"__doc__": kind.__doc__},
        module=__name__,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    if not shared:
        SECTIONS[kind] = made
    return cast(type[Section], made)


def key_of(kind: type[msgspec.Struct], field: str) -> Key | None:
    """Return what a field of settings says of its key in model.yaml; None where it is no key."""
    hint = get_type_hints(kind, include_extras=True).get(field)
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Key)), None)


def given(read: Any, kind: type[T]) -> dict[str, Any]:
    """Return the keys of a mapping that were given, by the names of the settings.

    Args:
        read: The mapping as a struct of `section`.
        kind: The struct of settings.
    """
    found = {}
    for name in read.__struct_fields__:
        value = getattr(read, name)
        if value is None or key_of(kind, name) is None:
            continue
        own = next((one for one, made in SECTIONS.items() if isinstance(value, made)), None)
        if own is not None:
            value = own(**given(value, own))
        elif isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, Number):
            value = float(value)
        found[name] = value
    return found


def _written(declared: Any, key: Key) -> Any:
    """Return the type that is read for a field of a type: sections for structs, bounded numbers for floats."""
    parts = (
        [one for one in get_args(declared) if one is not NoneType]
        if _is_union(declared)
        else [declared]
    )
    read = [SECTIONS.get(one, one) for one in parts]
    if read == [float]:
        number = type(
            "BoundedNumber", (Number,), {"low": key.bounds["ge"], "high": key.bounds["le"]}
        )
        read = [Annotated[number, means(key.means)]]
    joined = reduce(or_, read)
    if key.meta is not None and parts != [float]:
        joined = Annotated[joined, key.meta]
    return Annotated[joined, means(key.means)] if key.means else joined


def _is_union(declared: Any) -> bool:
    return get_origin(declared) in (Union, UnionType)


if TYPE_CHECKING:
    PadSection: TypeAlias = Section
else:
    PadSection = section("PadSection", Padding)


class TensorSection(Section):
    """A declared tensor."""

    name: Text
    datatype: Datatype
    shape: Annotated[
        list[Size],
        Meta(max_length=MAX_RANK, extra={"expected": "a list of dimensions"}),
        means(
            'Each a number, -1 for any size, a range "100:200" or the name of a length; -1 first is the batch'
        ),
    ]


class InputSection(TensorSection):
    """A declared input."""

    image: ImageSection | None = None
    optional: Annotated[
        bool, means("A request may leave the input out; the handler then gets None")
    ] = False
    pad: PadSection | None = None


class OutputImageSection(Section):
    """How rows of an output are encoded for clients that ask for images."""

    color: (
        Annotated[Literal["RGB", "BGR"], means("The order of colours in the last dimension")] | None
    ) = None
    formats: Annotated[list[Literal["png", "jpeg"]], Meta(min_length=1)] | None = None
    quality: (
        Annotated[int, Meta(ge=1, le=100), means("Of a JPEG, unless the client names one")] | None
    ) = None


class OutputSection(TensorSection):
    """A declared output."""

    image: OutputImageSection | None = None


BatchingSection = section("BatchingSection", Batching)
CacheSection = section("CacheSection", Cache)
RecordingSection = section("RecordingSection", Recording)
SequencesSection = section("SequencesSection", SequenceLimits)
VersionSection = section("VersionSection", VersionPolicy)
ModelKeys = section(
    "ModelKeys", ModelConfig, inputs=list[InputSection], outputs=list[OutputSection]
)
"""The keys of model.yaml."""

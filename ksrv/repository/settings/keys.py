"""The keys of model.yaml as msgspec structs: their types, bounds and meanings.

A setting is declared once, as a field with a `Key` in a struct of settings, such as `ModelConfig` or `JoinPolicy`.
`section` makes a second struct from it at import time, a `Section`, into which YAML is read: it has the names and types
of the keys in model.yaml, and None for a key that was left out or left empty. `Document.convert` fills the sections,
`given` turns a section back into the fields of the settings, and `json_schema.py` makes the schema for editors from the
sections. Only the structs of settings have the defaults.
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

from ksrv._native.images.image_header import FORMATS
from ksrv._native.tensor import datatype
from ksrv._native.tensor.datatype import MAX_RANK
from ksrv.descriptions import attribute_descriptions
from ksrv.errors import did_you_mean
from ksrv.model.config import (
    Cache,
    JoinPolicy,
    ModelConfig,
    OnnxSettings,
    OpenVinoSettings,
    Recording,
    Shadow,
    StateTensor,
    VersionPolicy,
)
from ksrv.model.postprocess import PostprocessStep, Step
from ksrv.model.spec import (
    LARGEST_SIZE,
    AudioSpec,
    ImageSpec,
    Key,
    OutputImageSpec,
    Padding,
    SequenceLimits,
    is_length_name,
    read_dimension,
)
from ksrv.repository.yaml_document import Custom, Number, NumberOrNumbers, Numbers, describe

CONFIG_NAME = "model.yaml"
LARGEST = LARGEST_SIZE

T = TypeVar("T", bound=msgspec.Struct)
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
MillisecondsOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]


class Size(Custom):
    """One dimension of a declared shape.

    Attributes:
        value: A positive number, -1 for any size, or an inclusive range (low, high).
        length: The name of the length (`ksrv/model/input_rules.py`) that the dimension is, of any size; or "".
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
        if value in datatype.NAMES:
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


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mapping in model.yaml. An unknown key is an error."""


def means(text: str) -> Meta:
    """Return the annotation of a key's meaning, for the JSON schema."""
    return Meta(description=text)


SECTIONS: dict[type[msgspec.Struct], type[Section]] = {}
"""The section for each struct of settings."""


def section(
    name: str, kind: type[msgspec.Struct], *, shared: bool = False, **more: Any
) -> type[Section]:
    """Return a section whose keys are the fields with a `Key` of a struct of settings.

    The field `count: Annotated[int, Key(ge=1, le=100_000)] = 10` of a struct of settings becomes
    `count: Annotated[int, Meta(ge=1, le=100_000), Meta(description="Files that are kept")] | None = None`.

    Args:
        name: The section's name, for the JSON schema.
        kind: The struct of settings.
        shared: Whether the section has only the keys that may also be beside the files of another server's archive.
        more: The types of keys without a `Key`, or with another type than their `Key` declares.
    """
    read = {}
    descriptions = attribute_descriptions(kind)
    for field in msgspec.structs.fields(kind):
        key = key_of(kind, field.name)
        if key is None or (shared and not key.shared) or field.name in more:
            continue
        declared = get_type_hints(kind)[field.name] if key.written is None else key.written
        written = _written(declared, key)
        if description := descriptions.get(field.name):
            written = Annotated[written, means(description)]
        encoded = key.name or field.name
        if field.required:
            read[field.name] = (written, msgspec.field(name=encoded))
        else:
            read[field.name] = (written | None, msgspec.field(name=encoded, default=None))
    for name_, type_ in more.items():
        if description := descriptions.get(name_):
            type_ = Annotated[type_, means(description)]
        read[name_] = (type_ | None, msgspec.field(default=None))
    made: Any = msgspec.defstruct(
        name,
        [(name, *rest) for name, rest in read.items()],
        bases=(Section,),
        namespace={"__doc__": (kind.__doc__ or "").partition("\n")[0]},
        module=__name__,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    if not shared:
        SECTIONS[kind] = made
    return cast(type[Section], made)


def key_of(kind: type[msgspec.Struct], field: str) -> Key | None:
    """Return the `Key` of a field of a struct of settings; None for a field that is not a key."""
    hint = get_type_hints(kind, include_extras=True).get(field)
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Key)), None)


def given(read: Any, kind: type[T]) -> dict[str, Any]:
    """Return the values of the keys that were given, by the names of the fields in the struct of settings.

    Args:
        read: The section.
        kind: The struct of settings.
    """
    found = {}
    for name in read.__struct_fields__:
        value = getattr(read, name)
        if value is not None and key_of(kind, name) is not None:
            found[name] = _setting(value)
    return found


def _setting(value: Any) -> Any:
    """Return the value of a key as its struct of settings has it."""
    inner = next((at for at, made in SECTIONS.items() if isinstance(value, made)), None)
    if inner is not None:
        return inner(**given(value, inner))
    if isinstance(value, list | tuple):
        return tuple(map(_setting, value))
    if isinstance(value, float | str):  # no `Number` or `Datatype`, but the plain value
        return float(value) if isinstance(value, float) else str(value)
    return value


def _written(declared: Any, key: Key) -> Any:
    """Return the type of a key in a section: sections for structs, and a `Number` with bounds for floats."""
    is_union = get_origin(declared) in (Union, UnionType)
    parts = [arg for arg in get_args(declared) if arg is not NoneType] if is_union else [declared]
    read = [SECTIONS.get(part, part) for part in parts]
    if read == [float]:
        number = type(
            "BoundedNumber", (Number,), {"low": key.bounds["ge"], "high": key.bounds["le"]}
        )
        read = [number]
    joined = reduce(or_, read)
    if key.meta is not None and parts != [float]:
        return Annotated[joined, key.meta]
    return joined


# mypy cannot follow the structs that `section` makes.
if TYPE_CHECKING:
    ImageSection: TypeAlias = Section
    OutputImageSection: TypeAlias = Section
    AudioSection: TypeAlias = Section
    PadSection: TypeAlias = Section
    StateSection: TypeAlias = Section
    StepSection: TypeAlias = Section
else:
    ImageSection = section(
        "ImageSection",
        ImageSpec,
        mean=Numbers,
        std=Numbers,
        pad=NumberOrNumbers,
        reduced=Reduced,
        formats=Annotated[list[Literal[FORMATS]], Meta(min_length=1)],
    )
    OutputImageSection = section("OutputImageSection", OutputImageSpec)
    AudioSection = section("AudioSection", AudioSpec)
    PadSection = section("PadSection", Padding)
    StateSection = section("StateSection", StateTensor)
    for kind in Step.__subclasses__():
        section(f"{kind.__name__}Section", kind)
    StepSection = section("StepSection", PostprocessStep)


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
    audio: AudioSection | None = None
    optional: Annotated[
        bool, means("A request may leave the input out; the handler then gets None")
    ] = False
    pad: PadSection | None = None


class OutputSection(TensorSection):
    """A declared output."""

    image: OutputImageSection | None = None
    content_type: Annotated[
        Text | None, means("The type of the files that are the elements, such as audio/wav")
    ] = None


BatchingSection = section("BatchingSection", JoinPolicy)
CacheSection = section("CacheSection", Cache)
OnnxSection = section("OnnxSection", OnnxSettings)
OpenVinoSection = section("OpenVinoSection", OpenVinoSettings)
RecordingSection = section("RecordingSection", Recording)
ShadowSection = section("ShadowSection", Shadow)
SequencesSection = section("SequencesSection", SequenceLimits)
VersionSection = section("VersionSection", VersionPolicy)
ModelKeys = section(
    "ModelKeys",
    ModelConfig,
    inputs=list[InputSection],
    outputs=list[OutputSection | Text],
    state=list[StateSection],
    postprocess=list[StepSection],
)
"""The keys of model.yaml."""

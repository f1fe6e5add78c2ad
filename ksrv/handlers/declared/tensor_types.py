"""The tensor types with which a handler declares tensors: `Float32[1000]`, `Image[224, 224, 3]`, `Bytes`.

A type is used in a type hint, or in a handler's `inputs` and `outputs`. Its sizes leave the batch dimension out:
`Float32[1000]` is declared as FP32 with the shape [-1, 1000]. A text names a length that differs from row to row:
`Int64["ids"]` is padded when requests are joined. Type checkers read checked_types.pyi instead, in which each type
accepts every value: an array, a torch tensor or a list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import msgspec

from ksrv._native.tensor.datatype import NAMES, TENSOR_NAMES
from ksrv.model.input_rules import default_image, problems
from ksrv.model.spec import (
    Dimension,
    ImageSpec,
    Padding,
    TensorSpec,
    changed_keys,
    file_problem,
    is_length_name,
    read_dimension,
)

MAX_SIZES = 31
"""The most sizes of a type: the most dimensions of the protocol, without the batch dimension."""

IMAGE = {"color": "RGB", "channels": "convert", "exif": "apply", "resize": "pillow"}
"""The `image:` settings that `Image` implies. An image of one channel is GRAY; an image of a free size is not
resized."""

_KEYS = set(ImageSpec.__struct_fields__)


class TensorTypeError(TypeError):
    """An invalid tensor type. The text names the type and the fault."""


@dataclass(frozen=True)
class TensorType:
    """One declared tensor without its name.

    Attributes:
        name: The name of the type, such as "Float32".
        datatype: A KServe v2 datatype.
        sizes: The shape without the batch dimension.
        image: The keys of `image:`, or None for the defaults.
        named_image: Whether the type is `Image`, which has other defaults.
        optional: Whether a request may leave the input out, whose value is then None.
        lengths: For each size the name of its length, or ""; empty if no size has a name.
        pad: How an input with a length is padded, or None for the defaults.
        content_type: The type of the files that an output of Bytes has, or "".
    """

    name: str
    datatype: str
    sizes: tuple[Dimension, ...] = ()
    image: ImageSpec | None = None
    named_image: bool = False
    optional: bool = False
    lengths: tuple[str, ...] = ()
    pad: Padding | None = None
    content_type: str = ""

    def __getitem__(self, sizes: Any) -> TensorType:
        given = sizes if isinstance(sizes, tuple) else (sizes,)
        if len(given) > MAX_SIZES:
            raise TensorTypeError(f"{self.name}: {len(given)} sizes; at most {MAX_SIZES} are taken")
        read: list[Dimension] = []
        lengths = tuple(size if is_length_name(size) else "" for size in given)
        for size, length in zip(given, lengths, strict=True):
            if length:
                read.append(-1)
                continue
            is_number = isinstance(size, Integral) and not isinstance(size, bool)
            dimension = read_dimension(int(size) if is_number else size)  # numpy has integers too
            if dimension is None:
                raise TensorTypeError(
                    f"{self._shown(given)}: expected a positive number, -1 for any size, a range "
                    f'"100:200" or the name of a length, found {size!r}'
                )
            read.append(dimension)
        made = TensorType(self.name, self.datatype, tuple(read), named_image=self.named_image)
        if any(lengths):
            made = replace(made, lengths=lengths)
        if not self.named_image:
            return made
        if len(read) != 3:
            raise TensorTypeError(
                f"{made}: an image has three sizes: Image[height, width, channels]"
            )
        return made.prepared()

    def or_none(self) -> TensorType:
        """Return this type for an input that a request may leave out, as `Float32[3] | None` does."""
        return replace(self, optional=True)

    def __or__(self, other: Any) -> TensorType:
        if other is not None:
            raise TensorTypeError(
                f"{self} | {other!r}: a tensor type can be combined with None alone"
            )
        return self.or_none()

    __ror__ = __or__

    def prepared(self, **keys: Any) -> TensorType:
        """Return this type for encoded images, prepared as the keys of `image:` in model.yaml say.

        Args:
            keys: `color`, `channels`, `exif`, `resize`, `shorter_side`, `resize_to`, `min_side`, `max_side`,
                `multiple`, `rounding`, `pad`, `align`, `scale`, `mean`, `std`, `arithmetic`, `reduced`, `formats`,
                `model_layout`; and `datatype`.

        Raises:
            TensorTypeError: A key is unknown, or does not fit the type or another key.
        """
        datatype = keys.pop("datatype", self.datatype)
        if len(self.sizes) != 3:
            raise TensorTypeError(f"{self}: an image has three sizes: height, width, channels")
        unknown = sorted(set(keys) - _KEYS)
        if unknown:
            raise TensorTypeError(
                f"{self}: image has no key {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}"
            )
        if isinstance(keys.get("pad"), (int, float)):
            keys["pad"] = (keys["pad"],)
        usual: dict[str, Any] = dict(IMAGE) if self.named_image else {}
        if usual and self.sizes[2] == 1:
            usual["color"] = "GRAY"
        if usual and -1 in self.sizes[:2]:
            usual["resize"] = "none"
        given = usual | keys
        for key, fault in problems(given, datatype, (-1, *self.sizes)):
            raise TensorTypeError(f"{self}: {key}{': ' if key else ''}{fault}")
        try:
            image = msgspec.convert(given, ImageSpec)
        except msgspec.ValidationError as error:
            raise TensorTypeError(f"{self}: image: {error}") from None
        return replace(self, datatype=datatype, image=image)

    def padded(self, **keys: Any) -> TensorType:
        """Return this type padded as the keys of `pad:` in model.yaml say.

        Args:
            keys: `value`, `multiple`, `mask`, `waste`, `exact`.

        Raises:
            TensorTypeError: A key is unknown, or its value is of another type or out of bounds.
        """
        unknown = sorted(set(keys) - set(Padding.__struct_fields__))
        if unknown:
            known = ", ".join(sorted(Padding.__struct_fields__))
            raise TensorTypeError(f"{self}: pad has no key {unknown[0]!r}; it has {known}")
        try:
            pad = msgspec.convert(keys, Padding)
        except msgspec.ValidationError as error:
            raise TensorTypeError(f"{self}: pad: {error}") from None
        if not 1 <= pad.multiple <= 1_000_000 or not 0.0 <= pad.waste <= 0.99:
            raise TensorTypeError(
                f"{self}: pad: multiple is from 1 to 1000000 and waste from 0 to 0.99, found {pad.multiple} and {pad.waste}"
            )
        return replace(self, pad=pad)

    def file(self, content_type: str) -> TensorType:
        """Return this type for an output whose elements are files, as `content_type:` in model.yaml does.

        Args:
            content_type: The media type, such as "audio/wav".

        Raises:
            TensorTypeError: The type is not Bytes, or the media type is not a type of files.
        """
        problem = file_problem(content_type, self.datatype, (-1, *self.sizes))
        if problem:
            raise TensorTypeError(f"{self}: content_type: {problem}")
        return replace(self, content_type=content_type)

    def spec(self, name: str) -> TensorSpec:
        """Return the declared tensor of this type.

        Args:
            name: The tensor's name.
        """
        if self.named_image and not self.sizes:
            raise TensorTypeError("Image needs its sizes: Image[height, width, channels]")
        shape = (-1, *self.sizes)
        lengths = ("", *self.lengths) if self.lengths else ()
        image = self.image
        if image is None and not lengths and self.pad is None:
            image = default_image(self.datatype, shape)
        return TensorSpec(
            name,
            self.datatype,
            shape,
            image,
            content_type=self.content_type,
            optional=self.optional,
            lengths=lengths,
            pad=self.pad,
        )

    def entry(self, name: str) -> dict[str, Any]:
        """Return the declared tensor as an entry of `inputs:` or `outputs:` in model.yaml.

        Args:
            name: The tensor's name.
        """
        spec = self.spec(name)
        shape: list[Any] = [
            f"{size[0]}:{size[1]}" if isinstance(size, tuple) else size for size in spec.shape
        ]
        for place, length in enumerate(spec.lengths):
            shape[place] = length or shape[place]
        found: dict[str, Any] = {"name": name, "datatype": spec.datatype, "shape": shape}
        if self.optional:
            found["optional"] = True
        if self.content_type:
            found["content_type"] = self.content_type
        if self.pad is not None:
            found["pad"] = changed_keys(self.pad)
        if self.image is not None:
            found["image"] = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in changed_keys(self.image).items()
            }
        return found

    def __str__(self) -> str:
        shown = [
            length or size
            for size, length in zip(
                self.sizes, self.lengths or ("",) * len(self.sizes), strict=True
            )
        ]
        return self._shown(tuple(shown)) + (" | None" if self.optional else "")

    __repr__ = __str__

    def _shown(self, sizes: tuple[Any, ...]) -> str:
        ends = (f"{size[0]}:{size[1]}" if isinstance(size, tuple) else repr(size) for size in sizes)
        return f"{self.name}[{', '.join(ends)}]" if sizes else self.name


def _type_name(datatype: str) -> str:
    """Return the name of a datatype's tensor type: the datatype's name in torch, written as a class.

    float32 becomes Float32, and bfloat16 BFloat16.
    """
    name = TENSOR_NAMES.get(datatype, datatype.lower())
    return re.sub("bf|.", lambda start: start[0].upper(), name, count=1)


TYPES = {_type_name(name): TensorType(_type_name(name), name) for name in NAMES}
TYPES["Image"] = TensorType("Image", "FP32", named_image=True)
"""The tensor types, by the names under which `ksrv` exports them."""

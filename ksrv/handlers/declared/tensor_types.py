"""The tensors that a handler in Python declares: `Float32[1000]`, `Image[224, 224, 3]`, `Bytes`.

A type stands in a type hint or in a handler's `inputs` and `outputs`. Its sizes leave the batch
dimension out: `Float32[1000]` is declared as FP32 with the shape [-1, 1000]. Type checkers read
checked_types.pyi instead, where each type takes every value: an array, a torch tensor or a list.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from typing import Any

import msgspec

from ksrv.image_rules import DATATYPES, default_image, problems
from ksrv.spec import Dimension, ImageSpec, TensorSpec, read_dimension

MAX_SIZES = 31
"""The sizes of one type: the protocol's most dimensions without the batch."""

IMAGE = {"color": "RGB", "channels": "convert", "exif": "apply", "resize": "pillow"}
"""The keys of `image:` that `Image` stands for; images of one channel are GRAY."""

_KEYS = {one.name for one in fields(ImageSpec)}


class TensorTypeError(TypeError):
    """A tensor type that cannot be; the text names it and its fault."""


@dataclass(frozen=True)
class TensorType:
    """One declared tensor without its name.

    Attributes:
        name: The name of the type, such as "Float32".
        datatype: A KServe v2 datatype.
        sizes: The shape without the batch dimension.
        image: The keys of `image:`, or None for the defaults of an input without them.
        named_image: Whether the type is `Image`, which has defaults of its own.
        optional: Whether a request may leave the input out, whose value is then None.
    """

    name: str
    datatype: str
    sizes: tuple[Dimension, ...] = ()
    image: ImageSpec | None = None
    named_image: bool = False
    optional: bool = False

    def __getitem__(self, sizes: Any) -> TensorType:
        given = sizes if isinstance(sizes, tuple) else (sizes,)
        if len(given) > MAX_SIZES:
            raise TensorTypeError(f"{self.name}: {len(given)} sizes; at most {MAX_SIZES} are taken")
        read: list[Dimension] = []
        for size in given:
            is_number = isinstance(size, Integral) and not isinstance(size, bool)
            dimension = read_dimension(int(size) if is_number else size)  # numpy has integers too
            if dimension is None:
                raise TensorTypeError(
                    f"{self._shown(given)}: expected a positive number, -1 for any size or a range "
                    f'"100:200", found {size!r}'
                )
            read.append(dimension)
        made = TensorType(self.name, self.datatype, tuple(read), None, self.named_image)
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
            raise TensorTypeError(f"{self} | {other!r}: a tensor type goes with None alone")
        return self.or_none()

    __ror__ = __or__

    def prepared(self, **keys: Any) -> TensorType:
        """Return this type with encoded images brought to it: the keys of `image:` in model.yaml.

        Args:
            keys: `color`, `channels`, `exif`, `resize`, `shorter_side`, `scale`, `mean`, `std`,
                `arithmetic`, `reduced`, `formats`, `model_layout`; and `datatype`.

        Raises:
            TensorTypeError: A key is unknown, or does not fit the type or another key.
        """
        datatype = keys.pop("datatype", self.datatype)
        if len(self.sizes) != 3:
            raise TensorTypeError(f"{self}: an image has three sizes: height, width, channels")
        if datatype not in DATATYPES:
            raise TensorTypeError(f"{self}: images become {', '.join(DATATYPES)}, not {datatype}")
        unknown = sorted(set(keys) - _KEYS)
        if unknown:
            raise TensorTypeError(
                f"{self}: image has no key {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}"
            )
        usual: dict[str, Any] = dict(IMAGE) if self.named_image else {}
        if usual and self.sizes[2] == 1:
            usual["color"] = "GRAY"
        given = usual | keys
        for key, fault in problems(given, datatype, (-1, *self.sizes)):
            raise TensorTypeError(f"{self}: {key}{': ' if key else ''}{fault}")
        try:
            image = msgspec.convert(given, ImageSpec)
        except msgspec.ValidationError as error:
            raise TensorTypeError(f"{self}: image: {error}") from None
        return replace(self, datatype=datatype, image=image)

    def spec(self, name: str) -> TensorSpec:
        """Return the declared tensor of this type.

        Args:
            name: The tensor's name.
        """
        if self.named_image and not self.sizes:
            raise TensorTypeError("Image needs its sizes: Image[height, width, channels]")
        shape = (-1, *self.sizes)
        image = self.image or default_image(self.datatype, shape)
        return TensorSpec(name, self.datatype, shape, image, optional=self.optional)

    def entry(self, name: str) -> dict[str, Any]:
        """Return the declared tensor as an entry of `inputs:` or `outputs:` in model.yaml.

        Args:
            name: The tensor's name.
        """
        spec = self.spec(name)
        shape = [f"{one[0]}:{one[1]}" if isinstance(one, tuple) else one for one in spec.shape]
        found: dict[str, Any] = {"name": name, "datatype": spec.datatype, "shape": shape}
        if self.optional:
            found["optional"] = True
        if self.image is not None:
            usual = ImageSpec()
            found["image"] = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in asdict(self.image).items()
                if value != getattr(usual, key)
            }
        return found

    def __str__(self) -> str:
        return self._shown(self.sizes) + (" | None" if self.optional else "")

    __repr__ = __str__

    def _shown(self, sizes: tuple[Any, ...]) -> str:
        ends = (f"{one[0]}:{one[1]}" if isinstance(one, tuple) else repr(one) for one in sizes)
        return f"{self.name}[{', '.join(ends)}]" if sizes else self.name


Bool = TensorType("Bool", "BOOL")
Uint8 = TensorType("Uint8", "UINT8")
Uint16 = TensorType("Uint16", "UINT16")
Uint32 = TensorType("Uint32", "UINT32")
Uint64 = TensorType("Uint64", "UINT64")
Int8 = TensorType("Int8", "INT8")
Int16 = TensorType("Int16", "INT16")
Int32 = TensorType("Int32", "INT32")
Int64 = TensorType("Int64", "INT64")
Float16 = TensorType("Float16", "FP16")
BFloat16 = TensorType("BFloat16", "BF16")
Float32 = TensorType("Float32", "FP32")
Float64 = TensorType("Float64", "FP64")
Bytes = TensorType("Bytes", "BYTES")
Image = TensorType("Image", "FP32", named_image=True)

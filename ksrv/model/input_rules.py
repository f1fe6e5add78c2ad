"""The rules for declared inputs: which take images, which are padded, and which of their keys fit together.

The same rules check model.yaml and the tensor types that handlers declare.

A **length** is a name for an open dimension of rows, such as the number of tokens of a text. Requests whose rows differ
in a length can become a batch, because the inputs are padded along it to the longest row, and outputs are cut back. All
inputs with the same length are padded alike. A **mask** is an input of shape [-1, -1] that is 1 over the values of each
row and 0 over the padding.

The shape of an input names lengths (`[-1, tokens]`). If it names none, `pad:` gives its only open dimension the name of
the input. `with_lengths` completes and checks the names; `lengths_of` then collects the rules of each length.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ksrv.model.datatypes import DTYPES, FLOATING, NAME_BY_DTYPE, cast
from ksrv.model.fault import Fault
from ksrv.model.spec import LARGEST_SIZE, Dimension, ImageSpec, Padding, TensorSpec

LINEAR_DATATYPES = {
    "FP32": "FP32", "FP16": "FP32", "FP64": "FP64", "BF16": "FP32", "UINT8": "UINT8", "INT8": None,
    "UINT16": "UINT16", "INT16": "INT16", "INT32": None,
}  # fmt: skip
"""The datatypes that image inputs can have, with the datatype in which `resize: linear` works: None for the file's."""


def default_image(datatype: str, shape: tuple[Dimension, ...]) -> ImageSpec | None:
    """Return how an input without an `image:` section takes images; None if it takes none.

    As in OpenVINO Model Server, a 4-D NHWC input of 1 or 3 channels takes images.
    """
    if datatype in LINEAR_DATATYPES and len(shape) == 4 and shape[3] in (1, 3):
        return ImageSpec()
    return None


def problems(
    given: dict[str, Any], datatype: str, shape: tuple[Dimension, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the faults of an `image:` section: the key, or "" for the section itself, and the text.

    Args:
        given: The keys that were given, with their values.
    """
    if len(shape) != 4:
        yield "", f"an image input has the shape [-1, H, W, C], not {len(shape)} dimensions"
        return
    if datatype not in LINEAR_DATATYPES:
        yield "", f"images become {', '.join(LINEAR_DATATYPES)}, not {datatype}"
    _, height, width, channels = shape
    yield from _size_problems(given, (height, width))
    color = given.get("color")
    if color == "GRAY" and channels not in (1, -1):
        yield "color", f"GRAY images have 1 channel; the shape says {channels}"
    if color not in (None, "GRAY") and channels == 1:
        yield "color", f"{color} images have 3 channels; the shape says 1"
    if channels not in (1, 3, 4, -1):
        yield "", f"an image has 1, 3 or 4 channels; the shape says {channels}"
    for key in ("mean", "std", "pad"):
        count = len(given.get(key, ()))
        if isinstance(channels, int) and channels > 0 and count not in (0, 1, channels):
            yield key, f"has {count} numbers for {channels} channels; write one for each"
    if any(number <= 0 for number in given.get("std", ())):
        yield "std", "must be above 0"
    if datatype not in FLOATING:
        for key in ("scale", "mean", "std"):
            if key in given:
                yield key, f"needs a floating-point datatype, not {datatype}"


def _size_problems(
    given: dict[str, Any], sides: tuple[Dimension, Dimension]
) -> Iterator[tuple[str, str]]:
    """Yield the faults of the keys of `image:` that choose sizes."""
    height, width = sides
    resize = given.get("resize", "linear")
    open_sides = sum(map(_is_open, sides))
    for key in ("shorter_side", "resize_to"):
        if key not in given:
            continue
        least = given[key] if key == "resize_to" else (given[key],) * 2
        if open_sides and (key == "resize_to" or open_sides == 1):
            yield key, "the centre crop needs a height and a width that are numbers"
        elif not open_sides and (least[0] < height or least[1] < width):
            shown = given[key] if key == "shorter_side" else list(given[key])
            yield key, f"{shown} is smaller than the crop of {height} x {width}"
        if resize in ("letterbox", "none"):
            yield key, f"has no meaning beside resize: {resize}"
    if "resize_to" in given and "shorter_side" in given:
        yield "resize_to", "shorter_side names another size; write one of the two"
    for key in ("min_side", "max_side", "multiple"):
        if key in given and (open_sides == 0 or resize == "none"):
            why = "nothing is resized" if open_sides else "the shape names the height and the width"
            yield key, f"has no meaning, because {why}"
        elif key in given and key != "multiple" and (open_sides == 1 or _boxes(resize, sides)):
            yield key, "needs an open height and width (-1) that no number or range bounds"
    for key in ("pad", "align"):
        if key in given and resize != "letterbox":
            yield key, "is for resize: letterbox"
    if any(not 0 <= number <= 255 for number in given.get("pad", ())):
        yield "pad", "counts in 8 bits, from 0 to 255"
    chosen = {"shorter_side", "min_side", "max_side", "multiple"} & set(given)
    keeps = "resize" in given and resize not in ("letterbox", "none") and sides == (-1, -1)
    if keeps and not chosen:
        yield (
            "resize",
            "the height and the width are free (-1), so images keep their size; write resize: none, add "
            'shorter_side, min_side, max_side or multiple, or give a side a number or a range such as "1:4096"',
        )


def _boxes(resize: str, sides: tuple[Dimension, Dimension]) -> bool:
    """Tell whether a letterbox has a size that the image fills."""
    return resize == "letterbox" and any(side != -1 for side in sides)


# ---- lengths and padding --------------------------------------------------------------------


class Length(NamedTuple):
    """The padding rules of one length, collected from all inputs that have it.

    Attributes:
        multiple: Padded lengths are multiples of this number.
        waste: The largest share of a padded row that may be padding, beyond the padding for `multiple`.
        most: The longest row that is allowed, with or without padding.
        mask: The name of the mask, or "".
        exact: Whether the answers do not depend on the padding, although the length has no mask.
    """

    multiple: int
    waste: float
    most: int
    mask: str
    exact: bool


def lengths_of(inputs: Iterable[TensorSpec]) -> dict[str, Length]:
    """Return the lengths along which inputs are padded, by name.

    Inputs with the same length need not repeat the keys of `pad:`; `_check_agreement` has refused different values.

    Args:
        inputs: Declared inputs, as `with_lengths` returned them.
    """
    found: dict[str, Length] = {}
    for tensor in inputs:
        for name, size in zip(tensor.lengths, tensor.shape, strict=False):
            if not name:
                continue
            pad = tensor.pad or Padding()
            known = found.get(name, Length(1, Padding().waste, LARGEST_SIZE, "", False))
            found[name] = Length(
                known.multiple if pad.multiple == 1 else pad.multiple,
                known.waste if pad.waste == Padding().waste else pad.waste,
                min(known.most, size[1]) if isinstance(size, tuple) else known.most,
                known.mask or pad.mask,
                known.exact or pad.exact,
            )
    return found


def padding_element(tensor: TensorSpec) -> bytes:
    """Return the padding value of an input as the bytes of one element.

    Raises:
        ValueError: The value is not one of the input's datatype.
    """
    value = 0 if tensor.pad is None else tensor.pad.value
    if tensor.datatype == "BOOL":
        if value not in (0, 1):
            raise ValueError("BOOL holds true and false")
        value = bool(value)
    array = np.asarray(value)
    datatype = NAME_BY_DTYPE.get(array.dtype)
    if datatype is None:
        raise OverflowError("it has more than 64 bits")
    return cast(array, datatype, tensor.datatype).astype(DTYPES[tensor.datatype]).tobytes()


def with_lengths(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, complete: bool = True
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the declared inputs with the lengths that `pad` and masks give their dimensions, and the outputs, checked.

    Args:
        complete: Whether the model has no other inputs, so that outputs can have no other lengths.

    Raises:
        Fault: The declarations contradict each other.
    """
    named = [_named(tensor, index, inputs) for index, tensor in enumerate(inputs)]
    for index, tensor in enumerate(named):
        if tensor.pad is not None and tensor.pad.mask:
            mask_index = _mask_index(tensor, index, named)
            named[mask_index] = _mask(named[mask_index], mask_index, tensor.lengths)
    _check_inputs(named)
    known = {name for tensor in named for name in tensor.lengths if name}
    for index, tensor in enumerate(outputs):
        _check_output(tensor, index, known if complete else None)
    return tuple(named), tuple(outputs)


def _named(tensor: TensorSpec, index: int, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return an input whose open dimension has the name of a length, if its `pad` leaves the name out.

    The name is the input's, or that of an earlier input with the same mask: both have the same length then.
    """
    if tensor.pad is None or any(tensor.lengths):
        return tensor
    # Dimension 0 is the batch.
    opened = [axis for axis, size in enumerate(tensor.shape) if axis and _is_open(size)]
    if len(opened) != 1:
        has = f"{len(opened)} open dimensions" if opened else "no open dimension"
        _fail(
            index,
            ("pad",),
            f"the input {tensor.name!r} has {has} behind the batch's; write the name of the length at the dimension "
            f"that is padded, such as shape: [-1, tokens, 80]",
        )
    mask = tensor.pad.mask
    name = tensor.name
    for other in inputs[:index] if mask else ():
        if other.pad is not None and other.pad.mask == mask:
            name = next(filter(None, other.lengths), other.name)
            break
    lengths = tuple(name if axis == opened[0] else "" for axis in range(len(tensor.shape)))
    return replace(tensor, lengths=lengths)


def _mask_index(tensor: TensorSpec, index: int, inputs: Sequence[TensorSpec]) -> int:
    """Return the index of the input that is the mask of an input."""
    mask = tensor.pad.mask if tensor.pad else ""
    found = next((at for at, other in enumerate(inputs) if other.name == mask), None)
    if found is None or found == index:
        known = ", ".join(other.name for at, other in enumerate(inputs) if at != index) or "none"
        _fail(index, ("pad", "mask"), f"{mask!r} is not another input; the others: {known}")
    if len(set(filter(None, tensor.lengths))) != 1:
        _fail(
            index,
            ("pad", "mask"),
            f"the input {tensor.name!r} has several lengths; a mask is for one",
        )
    return found


def _mask(tensor: TensorSpec, index: int, lengths: tuple[str, ...]) -> TensorSpec:
    """Return an input as the mask of the only name in `lengths`."""
    length = next(filter(None, lengths))
    shown = f"the input {tensor.name!r} is the mask of the length {length!r}"
    if tensor.pad is not None:
        _fail(index, ("pad",), f"{shown}, which is padded by zeros; leave pad out here")
    if tensor.optional:
        _fail(index, ("optional",), f"{shown}, which the server makes where it is left out")
    if tensor.datatype == "BYTES" or len(tensor.shape) != 2 or not _is_open(tensor.shape[1]):
        _fail(
            index,
            ("shape",),
            f"{shown}; declare numbers or BOOL of the shape [-1, -1], a value for each place of a row",
        )
    if any(tensor.lengths) and tensor.lengths[1] != length:
        _fail(index, ("shape",), f"{shown}, and its shape names the length {tensor.lengths[1]!r}")
    return replace(tensor, lengths=("", length), mask_of=length)


def _check_inputs(inputs: Sequence[TensorSpec]) -> None:
    first: dict[str, TensorSpec] = {}  # for each length, its first input with a `pad`
    for index, tensor in enumerate(inputs):
        names = [name for name in tensor.lengths if name]
        if not names:
            continue
        _check_padded(tensor, index)
        for name in names if tensor.pad is not None else ():
            _check_agreement(name, first.setdefault(name, tensor), tensor, index)
    for name, length in lengths_of(inputs).items():
        padded = [tensor for tensor in inputs if name in tensor.lengths and not tensor.mask_of]
        if not (length.mask or length.exact):
            _fail(
                inputs.index(padded[0]),
                ("pad",),
                f"the length {name!r} has no mask, so that the model cannot tell padding from values; name an input as mask, "
                f"or write exact: true if the answers do not depend on the padding",
            )
        if length.mask and all(tensor.optional for tensor in padded):
            _fail(
                inputs.index(padded[0]),
                ("optional",),
                f"a request without {padded[0].name!r} has no length to make the mask {length.mask!r} of",
            )


def _check_padded(tensor: TensorSpec, index: int) -> None:
    """Refuse an input that has a length and cannot be padded along it."""
    if not tensor.batched:
        _fail(
            index,
            ("shape",),
            f"the input {tensor.name!r} is padded and has no batch dimension; its shape must begin with -1",
        )
    if tensor.datatype == "BYTES" or tensor.image is not None:
        kind = "BYTES" if tensor.image is None else "images"
        _fail(index, ("shape",), f"the input {tensor.name!r} holds {kind}, which are not padded")
    for axis, size in enumerate(tensor.shape):
        if tensor.lengths[axis] and (not axis or not _is_open(size)):
            _fail(index, ("shape",), f"the dimension {axis} of {tensor.name!r} is not a length")
    try:
        padding_element(tensor)
    except (ValueError, OverflowError) as error:
        value = tensor.pad.value if tensor.pad else 0
        _fail(index, ("pad", "value"), f"{value!r} cannot fill {tensor.datatype}: {error}")


def _check_agreement(name: str, first: TensorSpec, tensor: TensorSpec, index: int) -> None:
    """Refuse two inputs that give a length different padding rules. An input may leave keys to the other input."""
    if tensor is first or tensor.pad is None or first.pad is None:
        return
    for key in ("multiple", "waste", "mask"):
        mine, other = getattr(tensor.pad, key), getattr(first.pad, key)
        if mine not in (other, getattr(Padding(), key)) and other != getattr(Padding(), key):
            _fail(
                index,
                ("pad", key),
                f"{tensor.name!r} and {first.name!r} are padded together to the length {name!r}, and {key} is {mine} here "
                f"and {other} there",
            )


def _check_output(tensor: TensorSpec, index: int, known: set[str] | None) -> None:
    """Refuse an output whose rows cannot be cut back to its lengths.

    Args:
        known: The lengths of the inputs; None if the model may have more inputs.
    """
    names = [name for name in tensor.lengths if name]
    if not names:
        return
    unknown = next((name for name in names if known is not None and name not in known), None)
    if unknown is not None:
        hint = (
            f"the lengths are {', '.join(sorted(known or ()))}" if known else "no input is padded"
        )
        raise Fault(("outputs", index, "shape"), f"{unknown!r} is the length of no input; {hint}")
    if not tensor.batched or tensor.lengths[0] or tensor.datatype == "BYTES":
        raise Fault(
            ("outputs", index, "shape"),
            f"the output {tensor.name!r} is cut back to each row's length, and so holds numbers or BOOL, with -1 first",
        )


def _is_open(size: Dimension) -> bool:
    """Tell whether a dimension allows several sizes."""
    return size == -1 or (isinstance(size, tuple) and size[0] != size[1])


def _fail(index: int, key: tuple[str, ...], message: str) -> NoReturn:
    raise Fault(("inputs", index, *key), message)

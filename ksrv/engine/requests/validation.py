"""Checks a request against its model, once and before the queue.

A request that passes can be batched and run without another check: its names, datatypes, shapes, numbers of
rows and requested outputs all fit the model's description. The parsers have checked already that the data of a tensor
fits its datatype and shape. An error names the tensor and both values that disagree.

Requests with equal batch keys can be joined: their inputs have the same names, datatypes and shapes after
the first dimension, and they have the same mode (infer or explain, stream or not). If a dimension is a length along
which rows are padded, lengths of the same bucket suffice. Batch keys are numbers that are counted up here and not
hashes, so that no client can make two different shapes look equal. A request whose images take long to decode has
a batch key that no other request gets, so that no request waits for it in a batch; see
`ksrv.engine.instances.decode_thread`.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from ksrv._native.images.image_header import SLOW_DECODE_NS
from ksrv._native.server.instance_runner import FIRST_UNSHARED_KEY
from ksrv._native.tensor.padding import LENGTH_KEYS, LengthBuckets
from ksrv.engine.requests.audio_input import AudioInput
from ksrv.errors import InvalidRequest, ModelFailed, quote
from ksrv.images.encoder import wanted_encoding
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import show_limit
from ksrv.model.input_rules import lengths_of
from ksrv.model.spec import Dimension, ModelSpec, TensorSpec, allows, fits
from ksrv.request import CheckedImages, Element, InferRequest, Tensor

MOST_KNOWN_KEYS = 4096
"""The most combinations of shapes whose batch keys are remembered."""
LARGEST_EMPTY = 65_536
"""The most elements that all empty inputs of a request may announce in dimensions that the model leaves open,
apart from the zeros. A handler may need a list, a mask or an iteration for each, although no byte was sent for it."""


class Validated(NamedTuple):
    """The result of a check: what the queue needs to know of a request.

    Attributes:
        rows: How many rows the request adds to a batch.
        batch_key: Requests with equal keys may be joined.
    """

    rows: int
    batch_key: int


@dataclass(slots=True)
class _Input:
    """A declared input, prepared for quick checks. The tail is the shape after the first dimension."""

    spec: TensorSpec
    tail: tuple[Dimension, ...]
    fixed_tail: tuple[int, ...] | None  # the tail, if it is fixed and the input has rows
    images: ImagePreparer | None
    # For each dimension of the tail the name of the length to which rows are padded, or ""; () without lengths.
    lengths: tuple[str, ...]


class RequestValidator:
    """The checks for one model version.

    Args:
        spec: The version's description, completed by its loader.
        images: How the images of each image input are prepared, by input name.
        audio: The readers of inputs that take sounds, by input name.
        split: Whether a request with more rows than a batch may be split.
        has_decode_thread: Whether slow images are decoded on a separate thread.
    """

    def __init__(
        self,
        spec: ModelSpec,
        images: dict[str, ImagePreparer] | None = None,
        audio: Mapping[str, AudioInput] | None = None,
        *,
        split: bool = False,
        has_decode_thread: bool = True,
    ) -> None:
        self.spec = spec
        self.split = split
        self._audio = audio or {}
        self._has_decode_thread = has_decode_thread
        declared = () if spec.accepts_any_inputs else spec.inputs
        self._inputs = {entry.name: _input(entry, (images or {})) for entry in declared}
        self._outputs = {entry.name for entry in spec.outputs}
        # Whether requests are joined into batches.
        self._joins = spec.max_batch_size > 0 and all(entry.batched for entry in declared)
        self._counts_rows = any(entry.batched for entry in declared)
        # If a single length is all that differs between requests, its bucket alone gives the batch key.
        self._buckets = buckets_of(spec) if declared else {}
        self._only_length = next(iter(self._buckets), "")
        if len(self._buckets) > 1 or not all(map(_is_open_in_lengths, self._inputs.values())):
            self._only_length = ""
        sequences = spec.sequences
        self._takes_one_row = (
            sequences is not None
            and not sequences.several_rows
            and (self._counts_rows or not declared)
        )
        self._known_keys: dict[object, int] = {}
        self._next_key = itertools.count(4)  # 0 to 3 are keys of the modes alone, see `_batch_key`
        self._next_unshared_key = itertools.count(FIRST_UNSHARED_KEY)
        # Whether the description leaves nothing open, so that the batch key is the mode.
        self._has_one_form = bool(declared) and all(
            entry.fixed_tail is not None and not entry.spec.optional
            for entry in self._inputs.values()
        )

    def decodes(self, request: InferRequest) -> bool:
        """Tell whether `validate` decodes sounds of a request, which may take long."""
        return any(item.datatype == "BYTES" and item.name in self._audio for item in request.inputs)

    def validate(self, request: InferRequest) -> Validated:
        """Check a request.

        Raises:
            InvalidRequest: The request does not fit the model.
        """
        decode_ns = 0
        # The inputs of a dialect's request are not the declared inputs.
        if self._inputs and not request.dialect:
            rows, shapes, decode_ns = self._declared(request)
        else:
            rows, shapes = self._undeclared(request)
        self._check_empty(request.inputs)
        if request.outputs:
            self._check_outputs(request)
        most = self.spec.row_limit or self.spec.max_batch_size
        if most and rows > most and (request.dialect or not self.split):
            raise InvalidRequest(
                f"the request has {rows} rows, above the {show_limit('max_batch_size', most)} of "
                f"the model {self.spec.name}"
            )
        if rows > 1 and self._takes_one_row:
            raise InvalidRequest(
                f"the request has {rows} rows, and the model {self.spec.name} takes one row of a sequence at a time; send "
                f"them one after the other, or, if the handler carries the state from row to row, write sequences: "
                f"{{several_rows: true}}"
            )
        if decode_ns >= SLOW_DECODE_NS and self._has_decode_thread:
            return Validated(rows, next(self._next_unshared_key))
        return Validated(rows, self._batch_key(request, shapes))

    def _declared(self, request: InferRequest) -> tuple[int, list[object], int]:
        """Check a request against the declared inputs.

        Returns:
            The rows, the shapes that the batch key depends on, and the estimated nanoseconds to decode the images.
        """
        inputs = self._inputs
        decode_ns = 0
        shapes: list[object] = []
        lengths: dict[str, tuple[int, str]] = {}
        rows = -1
        first = ""
        if len(request.inputs) != len(inputs):
            self._raise_wrong_names(request)
        seen = set()
        for index, tensor in enumerate(request.inputs):
            name = tensor.name
            expected = inputs.get(name)
            if tensor.datatype == "BYTES" and name in self._audio and name not in seen:
                request.inputs[index] = tensor = self._audio[name].read(tensor)
                request.nbytes += tensor.nbytes  # the queue counts the decoded samples, too
            if expected is None or name in seen:
                self._raise_wrong_names(request)
            assert expected is not None
            seen.add(name)
            if tensor.datatype != expected.spec.datatype:
                images = self._checked_images(tensor, expected)
                count, tail = images.shape[0], images.shape[1:]
                decode_ns += images.decode_ns
                request.images = {**(request.images or {}), name: images}
            else:
                count, tail = _checked_shape(tensor, expected, self.spec.name)
            if expected.lengths:
                self._note_lengths(tensor, expected, lengths)
            if expected.spec.mask_of:
                pass  # a mask has the length of its rows, whether it is given or made
            elif expected.fixed_tail is None or expected.spec.optional:
                shapes.append((name, self._joinable(tail, expected)))
            if expected.spec.batched:
                if rows == -1:
                    rows, first = count, name
                elif rows != count:
                    raise InvalidRequest(
                        f"the input {quote(name)} has {count} rows and the input {quote(first)} "
                        f"has {rows}; all inputs of a request need the same number of rows"
                    )
            elif rows == -1 and not self._counts_rows:
                # No input has rows, so the first input decides.
                rows, first = (count if tensor.shape else 1), name
        if lengths:
            request.lengths = {name: length for name, (length, _) in lengths.items()}
        return (1 if rows == -1 else rows), shapes, decode_ns

    def _note_lengths(
        self, tensor: Tensor, expected: _Input, lengths: dict[str, tuple[int, str]]
    ) -> None:
        """Note the lengths of an input's rows; raise if an earlier input has other lengths."""
        for length, size in zip(expected.lengths, tensor.shape[1:], strict=True):
            if not length:
                continue
            known, other = lengths.setdefault(length, (size, tensor.name))
            if known != size:
                raise InvalidRequest(
                    f"the rows of the input {quote(tensor.name)} have the length {size}, and rows of {quote(other)} "
                    f"have {known}; they are padded together, so each row needs the same length {quote(length)}"
                )

    def _joinable(self, tail: tuple[int, ...], expected: _Input) -> tuple[int, ...]:
        """Return the sizes that must be equal to join requests. For a padded length this is its bucket."""
        if not expected.lengths:
            return tail
        return tuple(
            self._buckets[length].bucket(size) if length else size
            for length, size in zip(expected.lengths, tail, strict=True)
        )

    def _wrong_datatype(self, tensor: Tensor, expected: _Input) -> InvalidRequest:
        """Return the error for an input of a datatype that the model does not take, with a hint about images."""
        spec = expected.spec
        hint = " or BYTES with encoded images" if expected.images is not None else ""
        hint = " or BYTES with sound files" if tensor.name in self._audio else hint
        if not hint and tensor.datatype == "BYTES" and len(spec.shape) == 4:
            hint = (
                f": encoded images need the layout NHWC with 1 or 3 channels, and its shape is "
                f"{shape_text(spec.shape)}"
            )
            if spec.shape[1] in (1, 3):
                hint += (
                    "; to send images, write 'handler: image_classifier' and 'model: FILE' in a model.yaml, or "
                    "declare an input of the layout NHWC with 'image: {model_layout: NCHW}'"
                )
        return InvalidRequest(
            f"the input {quote(tensor.name)} has the datatype {quote(tensor.datatype)}; the "
            f"model {self.spec.name} expects {spec.datatype}{hint or _no_numbers(tensor)}"
        )

    def _checked_images(self, tensor: Tensor, expected: _Input) -> CheckedImages:
        """Check an input that has not the declared datatype: it must be BYTES with encoded images."""
        spec = expected.spec
        if tensor.datatype != "BYTES" or expected.images is None:
            raise self._wrong_datatype(tensor, expected)
        shape = tensor.shape
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise InvalidRequest(
                f"the input {quote(tensor.name)} holds images in the shape {list(shape)}; expected "
                f"[N] or [N, 1] for N images"
            )
        if shape[0] == 0:
            raise InvalidRequest(f"the input {quote(tensor.name)} holds no image")
        if not spec.batched and shape[0] != _lowest(spec.shape[0]):
            low = _lowest(spec.shape[0])
            raise InvalidRequest(
                f"the input {quote(tensor.name)} holds {shape[0]} images; the model "
                f"{self.spec.name} expects {low}"
            )
        most = self.spec.max_batch_size
        if most and shape[0] > most and not self.split:
            # `validate` refuses so many rows: no header is read for them.
            return CheckedImages(shape[:1], (), 0)
        return expected.images.check(cast(list[Element], tensor.data), shape[0])

    def _undeclared(self, request: InferRequest) -> tuple[int, list[object]]:
        """Check inputs that the model does not declare. Return the rows, and the shapes for the batch key."""
        names = set()
        shapes: list[object] = []
        rows = -1  # -1: no input yet, -2: the inputs differ
        for tensor in request.inputs:
            if tensor.name in names:
                self._raise_wrong_names(request)
            names.add(tensor.name)
            count = tensor.shape[0] if tensor.shape else 1
            rows = count if rows in (-1, count) else -2
            shapes.append((tensor.name, tensor.datatype, tensor.shape[1:]))
        if self._joins:
            # A digest, because the client chooses the names and `_known_keys` would keep them, however long they are.
            facts = repr(shapes).encode("utf-8", "surrogatepass")
            shapes = [hashlib.blake2b(facts, digest_size=16).digest()]
        # 0 rows are an empty batch. But to a model that takes any inputs, also a request with a first dimension of 0
        # counts as one row.
        least = 1 if self.spec.accepts_any_inputs else 0
        if rows < least or any(not tensor.shape for tensor in request.inputs):
            may_lack_rows = request.dialect or self.spec.accepts_any_inputs or not request.inputs
            if self._joins and not may_lack_rows:
                raise InvalidRequest(self._no_rows(request))
            # Without a common first dimension the request counts as one row. It gets a new key, so it is never joined.
            return 1, [next(self._next_key)]
        return rows, shapes

    def _no_rows(self, request: InferRequest) -> str:
        """Return the error for a request whose inputs differ in their number of rows, to a model that joins rows."""
        counts = ", ".join(
            f"{quote(tensor.name)} {tensor.shape[0] if tensor.shape else 'none'}"
            for tensor in request.inputs[:8]
        )
        more = f" and {len(request.inputs) - 8} more" if len(request.inputs) > 8 else ""
        return (
            f"the model {self.spec.name} batches rows, so all inputs need the same first dimension; "
            f"the inputs of the request have {counts}{more}"
        )

    def _batch_key(self, request: InferRequest, shapes: list[object]) -> int:
        """Return the batch key of a request.

        It is the mode alone if the shapes cannot differ, a number made of the mode and the bucket if only one length
        can differ, and otherwise a number that is counted up for each new combination of shapes and mode.
        """
        mode = int(request.explain) + 2 * (request.stream is not None)
        if not self._joins or (self._has_one_form and not request.dialect):
            return mode
        if self._only_length and not request.dialect:
            # The native server computes the same number, so that its requests can be joined with this request.
            bucket = self._buckets[self._only_length].bucket(request.lengths[self._only_length])
            return LENGTH_KEYS + 4 * bucket + mode
        key = (tuple(shapes), mode, request.dialect)
        batch_key = self._known_keys.get(key)
        if batch_key is None:
            if len(self._known_keys) >= MOST_KNOWN_KEYS:
                self._known_keys = {}  # numbers are never used again, so requests with other shapes are not joined
            batch_key = self._known_keys.setdefault(key, next(self._next_key))
        return batch_key

    def _check_empty(self, inputs: Sequence[Tensor]) -> None:
        """Refuse empty inputs that announce many elements; see `LARGEST_EMPTY`."""
        total = 0
        for tensor in inputs:
            shape = tensor.shape
            expected = self._inputs.get(tensor.name)
            # An input of 0 rows costs nothing, unless the batch is padded to its length.
            if 0 not in shape or (shape[0] == 0 and not (expected and expected.lengths)):
                continue
            declared = expected.spec.shape[: len(shape)] if expected else ()
            sizes = itertools.zip_longest(shape, declared)
            total += math.prod(size for size, known in sizes if size not in (0, known))
            if total > LARGEST_EMPTY:
                raise InvalidRequest(
                    f"the input {quote(tensor.name)} has the shape {_cut_shape(shape)} and no values; the dimensions of "
                    f"such inputs that are not 0 and that the model leaves open may have a product of {LARGEST_EMPTY} "
                    f"at most, in all inputs of a request together"
                )

    def _check_outputs(self, request: InferRequest) -> None:
        names = set()
        for wanted in request.outputs:
            if self._outputs and wanted.name not in self._outputs:
                raise InvalidRequest(
                    f"the model {self.spec.name} has no output {quote(wanted.name)}; it has "
                    f"{_listed(self._outputs)}"
                )
            if wanted.name in names:
                raise InvalidRequest(f"the output {quote(wanted.name)} is requested twice")
            names.add(wanted.name)
            if wanted.parameters:
                encoding = wanted_encoding(
                    wanted.name, self.spec.output(wanted.name), wanted.parameters
                )
                if encoding and wanted.classification:
                    raise InvalidRequest(
                        f"the output {quote(wanted.name)} is asked for as images and as classes"
                    )

    def _raise_wrong_names(self, request: InferRequest) -> None:
        """Raise an error if the names of the inputs are not the declared names."""
        known = f"the inputs of the model {self.spec.name} are {_listed(self._inputs)}"
        names = set()
        for tensor in request.inputs:
            if self._inputs and tensor.name not in self._inputs:
                raise InvalidRequest(f"unknown input {quote(tensor.name)}; {known}")
            if tensor.name in names:
                raise InvalidRequest(f"the input {quote(tensor.name)} is given twice")
            names.add(tensor.name)
        missing = [
            name
            for name, expected in self._inputs.items()
            if name not in names and not expected.spec.may_be_left_out
        ]
        if missing:
            raise InvalidRequest(f"the input {quote(missing[0])} is missing; {known}")


def check_batching(spec: ModelSpec) -> None:
    """Check that requests to a model with batching can be joined.

    Args:
        spec: The version's description, completed by its loader.

    Raises:
        ModelFailed: An input has no dimension of rows.
    """
    if spec.max_batch_size < 2 or spec.accepts_any_inputs:
        return
    for entry in spec.inputs:
        if not entry.batched:
            raise ModelFailed(
                f"batching: joins requests along the first dimension, which has to be -1 in every input; the shape of "
                f"{entry.name!r} is {shape_text(entry.shape)}. Leave batching: out"
            )


def buckets_of(spec: ModelSpec) -> dict[str, LengthBuckets]:
    """Return the buckets of each named length of a model: rows whose lengths are in one bucket can be joined."""
    return {
        name: LengthBuckets(length.multiple, length.waste, length.most)
        for name, length in lengths_of(spec.inputs).items()
    }


def _input(spec: TensorSpec, images: dict[str, ImagePreparer]) -> _Input:
    tail = spec.shape[1:]
    fixed = tuple(entry for entry in tail if isinstance(entry, int) and entry >= 0)
    return _Input(
        spec,
        tail,
        fixed if len(fixed) == len(tail) and spec.batched else None,
        images.get(spec.name),
        spec.lengths[1:],
    )


def _is_open_in_lengths(entry: _Input) -> bool:
    """Tell whether only named lengths of the input's shape are open, and no request may leave the input out."""
    lengths = entry.lengths or ("",) * len(entry.tail)
    return not entry.spec.optional and all(
        length or (isinstance(size, int) and size >= 0)
        for size, length in zip(entry.tail, lengths, strict=True)
    )


def _checked_shape(tensor: Tensor, expected: _Input, model: str) -> tuple[int, tuple[int, ...]]:
    shape = tensor.shape
    declared = expected.spec.shape
    tail = shape[1:]
    allowed = len(shape) == len(declared)
    if allowed and shape:
        allowed = tail == expected.fixed_tail or all(map(allows, expected.tail, tail))
        allowed = allowed and allows(declared[0], shape[0])
    if not allowed:
        raise InvalidRequest(
            f"the input {quote(tensor.name)} has the shape {_cut_shape(shape)}; the model {model} "
            f"expects {shape_text(declared)}{_add_rows(shape, expected.spec)}"
        )
    return (shape[0] if shape else 1), tail


def _lowest(declared: Dimension) -> int:
    return declared[0] if isinstance(declared, tuple) else declared


def shape_text(shape: Sequence[Dimension]) -> str:
    """Return a declared shape as model.yaml writes it, such as "[-1, 100:200, 3]"."""
    entries = (f"{e[0]}:{e[1]}" if isinstance(e, tuple) else str(e) for e in shape)
    return f"[{', '.join(entries)}]"


def _cut_shape(shape: Sequence[int]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"{list(shape[:8])[:-1]}... ({len(shape)} long)"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quote, sorted(names)))


def _no_numbers(tensor: Tensor) -> str:
    return "; texts and files are BYTES: send numbers" if tensor.datatype == "BYTES" else ""


def _add_rows(shape: tuple[int, ...], spec: TensorSpec) -> str:
    """Return a hint if a row was sent without the dimension of rows, else ""."""
    if not spec.batched or not fits((1, *shape), spec.shape):
        return ""
    return f"; the first dimension counts the rows: one row is {[1, *shape]}"

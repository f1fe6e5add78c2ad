"""Encoded images into the rows of a batch: check the header, decode, resize, convert into the slot.

`ImagePreparer` follows the `image:` section of one input. Its defaults are those of OpenVINO Model
Server, which hold for an input without a section: pixels are decoded unchanged (BGR; grey keeps one
channel, alpha the fourth, 16-bit files their depth), the number of channels must be the declared
one, values are cast to the datatype *before* the `linear` resize where cv2 can resize that datatype
(FP32, FP64, UINT8, UINT16, INT16; FP16 and BF16 are resized as FP32, INT8 and INT32 in the file's
own depth, and cast afterwards), and nothing is normalised. Each key changes what it names and
nothing else. `area`, `pillow` and `letterbox` work on the decoded 8- or 16-bit values, as in the
libraries they come from. `channels: convert` decodes to the declared number of channels with 8 bits
a sample, 16 for a UINT16 input.

Rows lie in memory as height, width, channels, whatever `model_layout` says: with NCHW the handler is
given a transposed view of them, which is the memory format that torch calls channels_last.

The rows of a picture that cannot be decoded are zeroed, so that no byte of an earlier batch is seen.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ksrv._native.image.convert_pixels import Conversion
from ksrv._native.image.decode_pool import DecodePool
from ksrv._native.image.image_header import FORMATS, Header, decode_ns
from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.resize.jpeg_batch import ENDED, WHOLE, RowPlan, decode_rows
from ksrv._native.resize.row_resize import resize_rows
from ksrv._native.server.fast_images import FastImages
from ksrv._native.tensor.datatype import dtype_string
from ksrv.errors import BodyTooLarge, DeadlineExceeded, InvalidRequest, KsrvError, Overloaded
from ksrv.images import jpeg, opencv
from ksrv.images.decode_limits import (
    SCANS_PER_COMPONENT,
    ImageRefused,
    checked_header,
    decoder_bytes,
)
from ksrv.images.decode_memory import NoRoom, TooLarge, decoding
from ksrv.images.geometry import Geometry, Size, bounded, scratch
from ksrv.images.row_plans import RowPlans, jpeg_order, reduced_size
from ksrv.limits import Limits, show_limit
from ksrv.request import Array, CheckedImages, Element
from ksrv.spec import Dimension, ImageSpec, TensorSpec

MOST_THREADS = 8

# The type in which `linear` resizes; None where it is the file's own.
LINEAR_TYPES: dict[str, np.dtype[np.generic] | None] = {
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "FP16": np.dtype(np.float32),
    "BF16": np.dtype(np.float32),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "INT16": np.dtype(np.int16),
    "INT8": None,
    "INT32": None,
}

_KEEP = Conversion()


@functools.cache
def decode_pool(cores: int = 0) -> DecodePool:
    """Return the process's decode threads: one for each core, at most eight.

    Args:
        cores: The cores to use; 0 for all cores that the process may run on.
    """
    return DecodePool(min(cores or len(os.sched_getaffinity(0)), MOST_THREADS))


class _Picture(NamedTuple):
    """One picture that is about to be decoded."""

    place: int  # among the images that are prepared together
    row: int
    position: int  # among the images of its request
    element: Element
    header: Header
    request: NativeHandle | None = None

    def ended(self) -> bool:
        """Whether the image's request has ended."""
        return self.request is not None and self.request.done()


class ImagePreparer:
    """Turns the images of one input into rows.

    Args:
        spec: The input; 4 dimensions, in NHWC order.
        limits: Bounds on pixels.
        name: The input's name in error texts; the spec's own unless given.
        pool: The threads that share the work; the process's own unless given.

    Attributes:
        pool: As given.

    Raises:
        ValueError: The input cannot hold images, or its keys contradict each other.
    """

    def __init__(
        self, spec: TensorSpec, limits: Limits, name: str = "", pool: DecodePool | None = None
    ) -> None:
        image = spec.image or ImageSpec()
        if len(spec.shape) != 4:
            raise ValueError(f"an image input has 4 dimensions, not {len(spec.shape)}")
        if spec.datatype not in LINEAR_TYPES:
            raise ValueError(f"images cannot become {spec.datatype}")
        unknown = set(image.formats) - set(FORMATS)
        if unknown:
            raise ValueError(f"there is no image format {sorted(unknown)[0]!r}")
        self.spec = spec
        self.image = image
        self.limits = limits
        self.name = name or spec.name
        self.pool = pool or decode_pool()
        self._height, self._width, self._channels = spec.shape[1:]
        if image.shorter_side is not None:
            self._check_shorter_side(image.shorter_side)
        self._resizable = image.resize != "none" and -1 not in (self._height, self._width)
        self._geometry = Geometry(image)
        self._linear = LINEAR_TYPES[spec.datatype] if image.resize == "linear" else None
        self._bfloat16 = spec.datatype == "BF16"
        arithmetic = functools.partial(
            Conversion,
            scale=image.scale,
            mean=image.mean,
            std=image.std,
            exact=image.arithmetic == "exact",
        )
        # By whether the colours are still in cv2's order, and by channels.
        self._finish = {(False, count): arithmetic() for count in (1, 3, 4)}
        self._row_plans = RowPlans(
            self._geometry, self._finish, self._linear, self._resizable, bfloat16=self._bfloat16
        )
        self._swap: dict[int, Conversion] = {}
        for order in ((2, 1, 0), (2, 1, 0, 3)):
            if len(image.mean) in (0, 1, len(order)) and len(image.std) in (0, 1, len(order)):
                self._finish[True, len(order)] = arithmetic(channels=order)
            self._swap[len(order)] = Conversion(channels=order)

    def _check_shorter_side(self, side: int) -> None:
        if not isinstance(self._height, int) or not isinstance(self._width, int):
            raise ValueError("shorter_side needs a fixed height and width")
        if min(self._height, self._width) < 1 or side < max(self._height, self._width):
            raise ValueError(
                f"shorter_side is {side} and cannot hold a crop of {self._height}x{self._width}"
            )
        if self.image.resize in ("letterbox", "none"):
            raise ValueError(f"shorter_side does not go with resize: {self.image.resize}")

    # ---- before decoding ---------------------------------------------------------------------

    def check(self, elements: Sequence[Element], count: int) -> CheckedImages:
        """Check the headers of one request's images.

        No pixel is decoded, unless the number of channels is free and the first file's format does
        not tell it. A free height or width is the first image's; a range clamps it.

        Args:
            elements: The request's images, in order.
            count: How many images the request's shape announces.

        Returns:
            The headers, the shape of the images' tensor, and the time that decoding them takes.

        Raises:
            InvalidRequest: A count, header, format or size that is not accepted.
        """
        if len(elements) != count or count == 0:
            raise InvalidRequest(
                f"the input '{self.name}' holds {len(elements)} images and its shape says {count}"
            )
        headers = [self._header(element, index) for index, element in enumerate(elements)]
        pixels = sum(header.width * header.height for header in headers)
        if pixels > self.limits.request_pixels:
            raise InvalidRequest(
                f"the images of the input '{self.name}' have {pixels} pixels together, above the"
                f" {show_limit('request_pixels', self.limits.request_pixels)}"
            )
        first = self._size(headers[0])
        target = bounded(first[0], self._height), bounded(first[1], self._width)
        channels = self._target_channels(elements[0], headers[0])
        for index, header in enumerate(headers):
            self._check_channels(header.channels, channels, index)
            self._check_size(self._size(header), target, index)
        return CheckedImages((count, *target, channels), headers, sum(map(decode_ns, headers)))

    def _header(self, element: Element, index: int) -> Header:
        """Read and check the header of one image."""
        try:
            return checked_header(element, self.limits, self.image.formats)
        except ImageRefused as error:
            raise self._refusal(index, str(error)) from None

    def _size(self, header: Header) -> Size:
        if self.image.exif == "apply" and header.orientation >= 5:
            return header.width, header.height
        return header.height, header.width

    def _target_channels(self, element: Element, header: Header) -> int:
        """Return the channels of the tensor; the first image decides where they are free."""
        if isinstance(self._channels, int) and self._channels != -1:
            return self._channels
        if self.image.color == "GRAY":
            return 1
        if self.image.channels == "convert":
            return 3
        found = header.channels
        if found == 0:  # the format's header does not tell
            picture = _Picture(0, 0, 0, element, header)
            with self._reserved(picture, self._picture_bytes(header)):
                found = self._decoded(picture, 1, 0).shape[2]
        if not _allows(self._channels, found):
            raise self._refusal(0, f"has {found} channels, outside of {self._channels}")
        return found

    def _check_channels(self, found: int, wanted: int, index: int) -> None:
        if self.image.channels == "strict" and found not in (0, wanted):
            raise self._refusal(
                index,
                f"has {found} channels, and {wanted} are expected; 'channels: convert' in the input's "
                "'image:' section has the model take both",
            )

    def _check_size(self, size: Size, target: Size, index: int) -> None:
        if not self._resizable and size != target:
            raise self._refusal(
                index,
                f"is {size[1]}x{size[0]}, and {target[1]}x{target[0]} is expected, since the images"
                " of this input are not resized",
            )

    def _refusal(self, index: int, problem: str) -> InvalidRequest:
        return InvalidRequest(self._about(index, problem))

    def _about(self, index: int, problem: str) -> str:
        return f"image {index} of the input '{self.name}' {problem}"

    # ---- decoding ----------------------------------------------------------------------------

    def prepare(
        self,
        elements: Sequence[Element],
        out: Array,
        first_row: int = 0,
        numbers: Sequence[int] | None = None,
        requests: Sequence[NativeHandle] | None = None,
        headers: Sequence[Header] | None = None,
    ) -> list[KsrvError | None]:
        """Decode images into rows of a batch, on several threads when that pays.

        An image whose request has ended is passed over, so that one request's images cost the others
        of the batch, and those behind it, no more than its deadline allows.

        Args:
            elements: The images.
            out: [rows, height, width, channels] of the input's datatype (BF16 as uint16), C-ordered.
            first_row: The row of the first image; the others follow.
            numbers: The numbers of the images in error texts, where they are of several requests; their
                places in `elements` unless given.
            requests: The request of each image, where requests may end meanwhile.
            headers: The header of each image from `check`; read here unless given.

        Returns:
            For each image None, or its error; the row of an image with an error is all zero.
        """
        rows = range(first_row, first_row + len(elements))
        pictures, errors = self._pictures(elements, out, rows, numbers, requests, headers)
        if pictures and jpeg.decoder() == "libjpeg-turbo":
            try:
                pictures = self._prepare_by_rows(pictures, out, errors)
            except BaseException:
                out[[picture.row for picture in pictures]] = 0
                raise
        self._prepare_whole(pictures, out, errors)
        return errors

    def prepare_left(
        self,
        elements: Sequence[Element],
        out: Array,
        rows: Sequence[int],
        numbers: Sequence[int],
        requests: Sequence[NativeHandle],
    ) -> list[KsrvError | None]:
        """Decode the images that the native decoder has left, as whole pictures.

        Args:
            elements: The images.
            out: See `prepare`.
            rows: The row of each image.
            numbers: See `prepare`.
            requests: See `prepare`.

        Returns:
            See `prepare`.
        """
        pictures, errors = self._pictures(elements, out, rows, numbers, requests, None)
        self._prepare_whole(pictures, out, errors)
        return errors

    def fast_images(self) -> FastImages | None:
        """Return what the fast path needs to decode this input's JPEGs; None where it cannot."""
        height, width, channels = self._height, self._width, self._channels
        if not (
            jpeg.decoder() == "libjpeg-turbo"
            and "jpeg" in self.image.formats
            and isinstance(height, int)
            and isinstance(width, int)
            and isinstance(channels, int)
            and min(height, width) >= 0
            and channels in (1, 3)
        ):
            return None
        dtype = np.dtype(dtype_string(self.spec.datatype))
        return FastImages(
            self._row_plans.table(np.empty((height, width, channels), dtype)),
            self.pool,
            self.prepare_left,
            shape=(height, width, channels),
            strict=self.image.channels == "strict",
            upright=self.image.exif == "apply",
            resized=self._resizable,
            image_pixels=self.limits.image_pixels,
            request_pixels=self.limits.request_pixels,
            scans=self.limits.image_scans,
            scans_per_component=SCANS_PER_COMPONENT,
        )

    def _pictures(
        self,
        elements: Sequence[Element],
        out: Array,
        rows: Sequence[int],
        numbers: Sequence[int] | None,
        requests: Sequence[NativeHandle] | None,
        headers: Sequence[Header] | None,
    ) -> tuple[list[_Picture], list[KsrvError | None]]:
        """Return the images whose headers are accepted, and the errors of the others."""
        errors: list[KsrvError | None] = [None] * len(elements)
        pictures: list[_Picture] = []
        for index, element in enumerate(elements):
            number = index if numbers is None else numbers[index]
            request = None if requests is None else requests[index]
            try:
                header = self._header(element, number) if headers is None else headers[index]
            except InvalidRequest as error:
                errors[index] = error
                out[rows[index]] = 0
                continue
            pictures.append(_Picture(index, rows[index], number, element, header, request))
        return pictures, errors

    def _prepare_whole(
        self, pictures: list[_Picture], out: Array, errors: list[KsrvError | None]
    ) -> None:
        """Decode pictures as a whole, on several threads when that pays."""

        def run(start: int, stop: int) -> None:
            for picture in pictures[start:stop]:
                slot = out[picture.row]
                try:
                    self._fill(picture, slot)
                except KsrvError as error:
                    errors[picture.place] = error
                    slot[...] = 0
                except BaseException:
                    slot[...] = 0
                    raise

        work = sum(decode_ns(picture.header) for picture in pictures)
        chunks = self.pool.chunks(len(pictures), work)
        if chunks == 1:
            run(0, len(pictures))
        else:
            self.pool.run(run, len(pictures), chunks)

    def _prepare_by_rows(
        self, pictures: list[_Picture], out: Array, errors: list[KsrvError | None]
    ) -> list[_Picture]:
        """Decode, resize and convert JPEGs row by row, without the GIL.

        Args:
            pictures: The pictures of a batch.
            out: See `prepare`.
            errors: Receives the error of each picture whose request has ended.

        Returns:
            The pictures that are left: of other kinds, unusual or damaged, or without room.
        """
        left: list[_Picture] = []
        taken: list[_Picture] = []
        plans: list[RowPlan] = []
        for picture in pictures:
            plan = self._row_plans.plan(picture.header, out[0])
            if plan is None:
                left.append(picture)
            else:
                taken.append(picture)
                plans.append(plan)
        outcomes = decode_rows(
            self.pool,
            plans,
            [picture.element for picture in taken],
            [picture.header for picture in taken],
            [picture.row for picture in taken],
            out,
            [picture.request for picture in taken],
        )
        for picture, outcome in zip(taken, outcomes, strict=True):
            if outcome == ENDED:
                errors[picture.place] = _ended()
            elif outcome != WHOLE:
                left.append(picture)
        return left

    def _picture_bytes(self, header: Header) -> int:
        """Return the bytes that a picture needs while it is decoded as a whole."""
        nbytes = decoder_bytes(header)
        if self._linear is not None:  # `linear` casts the decoded pixels before it resizes them
            sample = header.bit_depth // 8 + self._linear.itemsize
            cast = header.width * header.height * (header.channels or 4) * sample
            nbytes = max(nbytes, cast)
        return nbytes

    @contextlib.contextmanager
    def _reserved(self, picture: _Picture, nbytes: int) -> Iterator[None]:
        """Count the bytes that a picture needs among those in flight."""
        try:
            taken = decoding.take(nbytes, picture.ended)
        except TooLarge as error:
            raise BodyTooLarge(self._about(picture.position, f"{error}")) from None
        except NoRoom as error:
            raise Overloaded(self._about(picture.position, f"{error}"), "bytes_in_flight") from None
        if not taken:
            raise _ended()
        try:
            yield
        finally:
            decoding.give_back(nbytes)

    def _fill(self, picture: _Picture, slot: Array) -> None:
        """Decode, resize and convert one picture into its row, unless its request has ended."""
        if picture.ended():
            raise _ended()
        header = picture.header
        target: Size = (slot.shape[0], slot.shape[1])
        size = self._size(header)
        self._check_channels(header.channels, slot.shape[2], picture.position)
        self._check_size(size, target, picture.position)
        reduction = self._geometry.reduction(size, target) if header.format == "jpeg" else 1
        with self._reserved(picture, self._picture_bytes(header)):
            self._fill_whole(picture, reduction, slot)

    def _fill_whole(self, picture: _Picture, reduction: int, slot: Array) -> None:
        """Decode a picture as a whole, then resize and convert it."""
        header, channels = picture.header, slot.shape[2]
        pixels = self._decoded(picture, reduction, channels)
        if pixels.shape[2] != channels:
            self._check_channels(pixels.shape[2], channels, picture.position)
            raise self._refusal(
                picture.position, f"decodes to {pixels.shape[2]} channels, not {channels}"
            )
        if self.image.exif == "apply" and header.orientation != 1:
            pixels = _with_channels(opencv.upright(pixels, header.orientation))
        swap = self.image.color == "RGB" and channels >= 3 and not self._decodes_rgb(picture.header)
        self._place(picture, pixels, swap, slot)

    def _place(self, picture: _Picture, pixels: Array, swap: bool, slot: Array) -> None:
        """Bring decoded pixels to the slot's size, colour order, values and datatype."""
        channels = pixels.shape[2]
        if self.image.resize == "pillow" and pixels.dtype != np.uint8:
            raise self._refusal(picture.position, "has 16 bits a sample, and `pillow` resizes 8")
        size: Size = (pixels.shape[0], pixels.shape[1])
        target: Size = (slot.shape[0], slot.shape[1])
        if not (self._geometry.fits(size, target) and size == target):
            if self._linear == np.float32:
                whole, offset = self._geometry.window(size, target)
                finish = self._finish[swap, channels]
                resize_rows(
                    pixels, slot, finish, whole, offset,
                    kind="linear floats", bfloat16=self._bfloat16,
                )  # fmt: skip
                return
            if self._linear is not None and pixels.dtype != self._linear:
                cast = scratch(self._linear, pixels.shape)
                (self._swap[channels] if swap else _KEEP)(pixels, cast)
                pixels, swap = cast, False
            direct = pixels.dtype == slot.dtype and not self._bfloat16
            placed = slot if direct else scratch(pixels.dtype, slot.shape)
            self._geometry.place(pixels, placed)
            pixels = placed
        finish = self._finish[swap, channels]
        if pixels is not slot or swap or not finish.keeps_values:
            finish(pixels, slot, bfloat16=self._bfloat16)

    def _decodes_rgb(self, header: Header) -> bool:
        """Whether the decoder itself puts red first: for all but files that are kept unchanged."""
        return self.image.channels == "convert" or (
            header.format == "jpeg" and header.channels == 3 and header.bit_depth == 8
        )

    def _decoded(self, picture: _Picture, reduction: int, channels: int) -> Array:
        """Decode to [height, width, channels]; `channels` 0 keeps the file's own."""
        header = picture.header
        height, width = reduced_size((header.height, header.width), reduction)
        if jpeg.decodes(header) and (order := jpeg_order(self.image, header.channels, channels)):
            picture_memory = scratch(
                np.dtype(np.uint8), (height, width, 1 if order == "GRAY" else 3)
            )
            if jpeg.decode_into(picture.element, picture_memory, order, reduction):
                return picture_memory
        pixels = opencv.decode(picture.element, self._flags(header, reduction, channels))
        if pixels is None:
            raise self._refusal(
                picture.position, f"is not a whole {header.format.upper()}: it cannot be decoded"
            )
        pixels = _with_channels(pixels)
        # A decoder that sees another size than the header check did is not to be trusted.
        if pixels.shape[:2] != (height, width):
            raise self._refusal(
                picture.position,
                f"decodes to {pixels.shape[1]}x{pixels.shape[0]}, and its header says"
                f" {width}x{height}",
            )
        if self.image.channels == "convert" and channels == 4:
            pixels = _with_alpha(pixels, self.image.color == "RGB")
        return pixels

    def _flags(self, header: Header, reduction: int, channels: int) -> int:
        cv2 = opencv.load()
        upright: int = cv2.IMREAD_IGNORE_ORIENTATION
        convert = self.image.channels == "convert"
        if convert and channels == 4:
            return int(cv2.IMREAD_UNCHANGED)
        colour = channels >= 3 if convert else header.channels != 1
        rgb = colour and self.image.color == "RGB" and self._decodes_rgb(header)
        if reduction > 1:
            flags = int(getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{reduction}"))
            if not colour:
                return flags | upright
            return flags | upright | int(cv2.IMREAD_COLOR_RGB if rgb else cv2.IMREAD_COLOR)
        if rgb:
            flags = int(cv2.IMREAD_COLOR_RGB)
        elif convert:
            flags = int(cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
        else:
            return int(cv2.IMREAD_UNCHANGED)
        keeps_depth = convert and self.spec.datatype == "UINT16" and self.image.resize != "pillow"
        return flags | upright | (int(cv2.IMREAD_ANYDEPTH) if keeps_depth else 0)


def _ended() -> DeadlineExceeded:
    return DeadlineExceeded("the request ended before all of its images were decoded")


def _allows(dimension: Dimension, size: int) -> bool:
    if isinstance(dimension, tuple):
        return dimension[0] <= size <= dimension[1]
    return dimension in (-1, size)


def _with_channels(pixels: Array) -> Array:
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def _with_alpha(pixels: Array, rgb: bool) -> Array:
    """Return 8-bit pixels of one, three or four channels with four, opaque where alpha is missing."""
    cv2 = opencv.load()
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    channels = pixels.shape[2]
    if channels == 1:
        return cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGRA)  # type: ignore[no-any-return]
    if channels == 3:
        flag = cv2.COLOR_BGR2RGBA if rgb else cv2.COLOR_BGR2BGRA
        return cv2.cvtColor(pixels, flag)  # type: ignore[no-any-return]
    return cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA) if rgb else pixels

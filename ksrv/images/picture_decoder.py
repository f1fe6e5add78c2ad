"""Decodes one picture into its row of a batch.

`PictureDecoder.fill` first tries to decode a JPEG row by row (`row_plans.py`). Otherwise it decodes the picture as a
whole (`_decoded`), turns it as EXIF says, and resizes and converts it (`_place`). The memory is reserved in the memory
budget meanwhile. It runs on the threads of the decode pool, several pictures at a time.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.image_header import Header
from ksrv._native.images.jpeg_decoder import decode_jpeg_into
from ksrv._native.images.row_resize import resize_rows
from ksrv._native.queue.request_handle import NativeHandle
from ksrv.errors import BodyTooLarge, DeadlineExceeded, Overloaded
from ksrv.images import decode_memory, jpeg, opencv
from ksrv.images.decode_limits import decoder_bytes, not_decoded
from ksrv.images.decode_memory import NoRoom, TooLarge
from ksrv.images.geometry import Size, scratch
from ksrv.images.image_input import ImageInput
from ksrv.images.row_plans import RowPlans, jpeg_order, reduced_size
from ksrv.request import Array, Element

_KEEP = Conversion()
_SAMPLES = (np.dtype(np.uint8), np.dtype(np.uint16))


class Picture(NamedTuple):
    """One picture that is about to be decoded."""

    place: int  # its index among the images that are prepared together
    row: int  # of the batch
    position: int  # its index among the images of its request, for error texts
    element: Element
    header: Header
    request: NativeHandle | None = None

    def ended(self) -> bool:
        """Whether the image's request has ended."""
        return self.request is not None and self.request.done()


class PictureDecoder:
    """Decodes pictures of one input.

    Attributes:
        plans: How JPEGs become rows while they are decoded.
    """

    def __init__(self, wanted: ImageInput) -> None:
        self._input = wanted
        self.plans = RowPlans(wanted)

    def channels(self, element: Element, header: Header) -> int:
        """Return the channels of a picture whose header does not state them, by decoding it.

        Raises:
            KsrvError: The picture cannot be decoded.
        """
        picture = Picture(place=0, row=0, position=0, element=element, header=header)
        with self._reserved(picture, self._picture_bytes(header)):
            return int(self._decoded(picture, reduction=1, channels=0).shape[2])

    def _picture_bytes(self, header: Header) -> int:
        """Return the bytes that a picture needs while it is decoded as a whole."""
        nbytes = decoder_bytes(header)
        # `linear` casts the decoded pixels before it resizes them.
        if self._input.linear is not None:
            sample = header.bit_depth // 8 + self._input.linear.itemsize
            cast = header.width * header.height * (header.channels or 4) * sample
            nbytes = max(nbytes, cast)
        return nbytes

    def _resized_bytes(self, header: Header, size: Size, slot: Array) -> int:
        """Return the bytes of the intermediate picture that the row is cropped from; 0 if only the row is resized."""
        linear = self._input.linear
        if linear == np.float32:
            return 0
        sample = linear.itemsize if linear is not None else header.bit_depth // 8
        target: Size = (slot.shape[0], slot.shape[1])
        return self._input.geometry.whole_pixels(size, target) * int(slot.shape[2]) * sample

    @contextlib.contextmanager
    def _reserved(self, picture: Picture, nbytes: int) -> Iterator[None]:
        """Reserve the bytes that a picture needs in the memory budget."""
        try:
            taken = decode_memory.take(nbytes, picture.ended)
        except TooLarge as error:
            raise BodyTooLarge(self._input.about(picture.position, f"{error}")) from None
        except NoRoom as error:
            raise Overloaded(
                self._input.about(picture.position, f"{error}"), "bytes_in_flight"
            ) from None
        if not taken:
            raise ended_error()
        try:
            yield
        finally:
            decode_memory.give_back(nbytes)

    def fill(self, picture: Picture, slot: Array) -> None:
        """Decode, resize and convert one picture into its row, unless its request has ended.

        Args:
            slot: Its row, [height, width, channels].

        Raises:
            KsrvError: It cannot be decoded, or its request has ended.
        """
        if picture.ended():
            raise ended_error()
        header = picture.header
        target: Size = (slot.shape[0], slot.shape[1])
        size = self._input.size(header)
        if (plan := self.plans.plan(header, size, slot.shape)) is not None:
            with self._reserved(picture, header.row_decoder_bytes):
                if plan.decode(picture.element, slot):
                    return
        self._input.check_channels(header.channels, slot.shape[2], picture.position)
        self._input.check_size(size, target, picture.position)
        reduction = self._input.geometry.reduction(size, target) if header.format == "jpeg" else 1
        nbytes = self._picture_bytes(header) + self._resized_bytes(header, size, slot)
        with self._reserved(picture, nbytes):
            self._fill_whole(picture, reduction, slot)

    def _fill_whole(self, picture: Picture, reduction: int, slot: Array) -> None:
        """Decode a picture as a whole, then resize and convert it."""
        header, channels = picture.header, slot.shape[2]
        pixels = self._decoded(picture, reduction, channels)
        if pixels.shape[2] != channels:
            self._input.check_channels(pixels.shape[2], channels, picture.position)
            raise self._input.refusal(
                picture.position, f"decodes to {pixels.shape[2]} channels, not {channels}"
            )
        if self._input.image.exif == "apply" and header.orientation != 1:
            pixels = _with_channels(opencv.upright(pixels, header.orientation))
        swap = (
            self._input.image.color == "RGB"
            and channels >= 3
            and not self._decodes_rgb(header, channels)
        )
        self._place(picture, pixels, swap, slot)

    def _place(self, picture: Picture, pixels: Array, swap: bool, slot: Array) -> None:
        """Resize decoded pixels into the slot, and convert them to the slot's colour order, values and datatype.

        Args:
            swap: Whether BGR must become RGB.
        """
        channels = pixels.shape[2]
        if self._input.image.resize == "pillow" and pixels.dtype != np.uint8:
            raise self._input.refusal(
                picture.position, "has 16 bits per sample, and 'resize: pillow' takes 8"
            )
        geometry = self._input.geometry
        size: Size = (pixels.shape[0], pixels.shape[1])
        whole, offset, (top, left, height, width) = geometry.inside(
            self._input.size(picture.header), (slot.shape[0], slot.shape[1])
        )
        if geometry.boxed:
            slot[...] = self._input.border(channels, pixels.dtype)
            slot = slot[top : top + height, left : left + width]
        if not whole == size == (height, width):
            if self._input.linear == np.float32:  # resized and converted in one pass over the rows
                finish = self._input.finish[swap, channels]
                resize_rows(
                    pixels, slot, finish, whole, offset,
                    kind="linear floats", bfloat16=self._input.bfloat16,
                )  # fmt: skip
                return
            # As in OpenVINO Model Server, `linear` casts the values before it resizes them.
            if self._input.linear is not None and pixels.dtype != self._input.linear:
                cast = scratch(self._input.linear, pixels.shape)
                (self._input.swap[channels] if swap else _KEEP)(pixels, cast)
                pixels, swap = cast, False
            # The uint16 of a BF16 slot are bit patterns, so 16-bit pixels cannot be resized into them.
            direct = pixels.dtype == slot.dtype and not self._input.bfloat16
            placed = slot if direct else scratch(pixels.dtype, slot.shape)
            geometry.resize(pixels, whole, offset, placed)
            pixels = placed
        finish = self._input.finish[swap, channels]
        is_final = pixels.dtype == slot.dtype and not self._input.bfloat16 and not swap
        if not (is_final and finish.keeps_values):
            finish(pixels, slot, bfloat16=self._input.bfloat16)
        elif pixels is not slot:
            slot[...] = pixels

    def _decodes_rgb(self, header: Header, channels: int) -> bool:
        """Whether the decoder gives RGB. For TIFFs and for files that are decoded unchanged, cv2 gives BGR.

        If cv2 were asked for RGB, it would leave the pixels of a 16-bit TIFF uninitialised.
        """
        if self._input.image.channels == "convert":
            return header.format != "tiff" or channels == 4
        return header.format == "jpeg" and header.channels == 3 and header.bit_depth == 8

    def _decoded(self, picture: Picture, reduction: int, channels: int) -> Array:
        """Decode to [height, width, channels]; with `channels` 0 the picture keeps the file's channels."""
        header = picture.header
        height, width = reduced_size((header.height, header.width), reduction)
        if jpeg.decodes(header) and (
            order := jpeg_order(self._input.image, header.channels, channels)
        ):
            picture_memory = scratch(
                np.dtype(np.uint8), (height, width, 1 if order == "GRAY" else 3)
            )
            if decode_jpeg_into(picture.element, picture_memory, order, reduction):
                return picture_memory
        pixels = opencv.decode(picture.element, self._flags(header, reduction, channels))
        if pixels is None:
            raise self._input.refusal(picture.position, not_decoded(header))
        if pixels.dtype not in _SAMPLES:
            raise self._input.refusal(
                picture.position,
                f"has samples of {pixels.dtype}, and 8 or 16 bits without a sign are expected; convert it",
            )
        # cv2 writes only one channel of such a file, and leaves the others uninitialised.
        if header.separate and pixels.ndim == 3 and pixels.dtype == np.uint16:
            raise self._input.refusal(
                picture.position,
                "is a TIFF of 16 bits that stores each channel separately, which is not decoded;"
                " store the channels of a pixel together, or save it with 8 bits",
            )
        pixels = _with_channels(pixels)
        # The limits were checked by the size in the header, so another size is refused.
        if pixels.shape[:2] != (height, width):
            raise self._input.refusal(
                picture.position,
                f"decodes to {pixels.shape[1]}x{pixels.shape[0]}, and its header says"
                f" {width}x{height}",
            )
        if self._input.image.channels == "convert" and channels == 4:
            pixels = _with_alpha(pixels, self._input.image.color == "RGB")
        return pixels

    def _flags(self, header: Header, reduction: int, channels: int) -> int:
        """Return cv2's IMREAD flags for a picture."""
        cv2 = opencv.load()
        # As in the file, because the sizes of the header are compared first; `_fill_whole` turns the picture.
        unturned: int = cv2.IMREAD_IGNORE_ORIENTATION
        convert = self._input.image.channels == "convert"
        if convert and channels == 4:
            return int(cv2.IMREAD_UNCHANGED)
        colour = channels >= 3 if convert else header.channels != 1
        rgb = colour and self._input.image.color == "RGB" and self._decodes_rgb(header, channels)
        if reduction > 1:
            flags = int(getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{reduction}"))
            if not colour:
                return flags | unturned
            # cv2's IMREAD_REDUCED_COLOR_2 is IMREAD_REDUCED_GRAYSCALE_2 with IMREAD_COLOR.
            return flags | unturned | int(cv2.IMREAD_COLOR_RGB if rgb else cv2.IMREAD_COLOR)
        if rgb:
            flags = int(cv2.IMREAD_COLOR_RGB)
        elif convert:
            flags = int(cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
        else:
            return int(cv2.IMREAD_UNCHANGED)
        keeps_depth = (
            convert
            and self._input.spec.datatype == "UINT16"
            and self._input.image.resize != "pillow"
        )
        return flags | unturned | (int(cv2.IMREAD_ANYDEPTH) if keeps_depth else 0)


def ended_error() -> DeadlineExceeded:
    """Return the error of an image whose request has ended."""
    return DeadlineExceeded("the request ended before all of its images were decoded")


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

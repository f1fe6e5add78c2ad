"""Turns encoded images into the rows of a batch: checks headers, decodes, resizes and converts.

`ImagePreparer.check` runs when a request is validated, `prepare` when its batch is assembled. `prepare` gives each
image to a `PictureDecoder` on a thread of the decode pool, and waits for all of them.

`ImagePreparer` follows the `image:` section of one input. An input without a section gets the defaults of OpenVINO
Model Server: pixels are decoded unchanged (BGR; grey keeps one channel, alpha the fourth, 16-bit files their depth),
the number of channels must be as declared, values are cast to the datatype *before* the `linear` resize if cv2 can
resize that datatype (FP32, FP64, UINT8, UINT16, INT16; FP16 and BF16 are resized as FP32, INT8 and INT32 in the file's
depth, and cast afterwards), and nothing is normalised. Each key of the section changes only the step that it names.
`area`, `pillow` and `letterbox` work on the decoded 8- or 16-bit values, as in the libraries that they come from.
`channels: convert` decodes to the declared number of channels with 8 bits a sample, 16 for a UINT16 input.

Rows are always stored as height, width, channels. With `model_layout: NCHW` the handler gets a transposed view, which
is the memory format that torch calls channels_last.

The rows of a picture that cannot be decoded are zeroed, so that no byte of an earlier batch is seen.
"""

import functools
import logging
from collections.abc import Sequence

from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.images.image_header import Header
from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.server.fast_images import FastImages
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError, Overloaded
from ksrv.images import jpeg, opencv
from ksrv.images.decode_limits import SCANS_PER_COMPONENT
from ksrv.images.image_input import ImageInput
from ksrv.images.picture_decoder import Picture, PictureDecoder
from ksrv.limits import Limits, show_limit
from ksrv.machine.cgroups import usable_cores
from ksrv.model.spec import TensorSpec
from ksrv.request import Array, CheckedImages, Element, ImagePlacement

MOST_THREADS = 8
"""The most decode threads of a process."""
RESIZED_PIXEL_NS = 4
"""About how many nanoseconds cv2 needs for a pixel of a resized picture."""

log = logging.getLogger("ksrv.engine")


def decode_pool(cores: int = 0) -> DecodePool:
    """Return the process's decode threads: one for each core, at most eight.

    Args:
        cores: The cores to use; 0 for all cores that the process may run on.
    """
    return _pool_of(min(cores or usable_cores(), MOST_THREADS))


_pool_of = functools.cache(DecodePool)


class ImagePreparer:
    """Turns the images of one input into rows.

    Args:
        spec: The input; 4 dimensions, in NHWC order.
        name: The input's name in error texts; by default the spec's.
        pool: The threads that share the work; by default the process's.

    Attributes:
        input: The input's requirements on its images.
        pool: As given.

    Raises:
        ValueError: The input cannot hold images, or its keys contradict each other.
    """

    def __init__(
        self, spec: TensorSpec, limits: Limits, name: str = "", pool: DecodePool | None = None
    ) -> None:
        wanted = self.input = ImageInput(spec, limits, name)
        self.pool = pool or decode_pool()
        self._decoder = PictureDecoder(wanted)

    def check(self, elements: Sequence[Element], count: int) -> CheckedImages:
        """Check the headers of one request's images.

        No pixel is decoded, unless the number of channels is free and the header of the first file does
        not state it. A free height or width is that of the first image; a range clamps it.

        Args:
            count: How many images the request's shape announces.

        Returns:
            The headers, the shape of the images' tensor, and the time that decoding them takes.

        Raises:
            InvalidRequest: A count, header, format or size that is not accepted.
        """
        if len(elements) != count or count == 0:
            raise InvalidRequest(
                f"the input '{self.input.name}' holds {len(elements)} images and its shape says {count}"
            )
        headers = [self.input.header(element, index) for index, element in enumerate(elements)]
        pixels = sum(header.width * header.height for header in headers)
        if pixels > self.input.limits.request_pixels:
            raise InvalidRequest(
                f"the images of the input '{self.input.name}' have {pixels} pixels together, above the"
                f" {show_limit('request_pixels', self.input.limits.request_pixels)}"
            )
        target = self.input.geometry.row(self.input.size(headers[0]))
        if self.input.geometry.boxed:  # an open side has room for the largest image
            rows = [self.input.geometry.row(self.input.size(header)) for header in headers]
            target = max(row[0] for row in rows), max(row[1] for row in rows)
        if count * target[0] * target[1] > self.input.limits.request_pixels:
            raise self.input.refusal(
                0,
                f"and the other {count - 1} become {target[1]}x{target[0]} pixels each, together above the "
                f"{show_limit('request_pixels', self.input.limits.request_pixels)}",
            )
        channels = self._target_channels(elements[0], headers[0])
        work_ns = 0
        for index, header in enumerate(headers):
            size = self.input.size(header)
            self.input.check_channels(header.channels, channels, index)
            self.input.check_size(size, target, index)
            resized = self.input.geometry.whole_pixels(size, target)
            work_ns += header.decode_ns + RESIZED_PIXEL_NS * resized
        return CheckedImages((count, *target, channels), headers, work_ns)

    def _target_channels(self, element: Element, header: Header) -> int:
        """Return the channels of the tensor; the first image decides if they are free."""
        if isinstance(self.input.channels, int) and self.input.channels != -1:
            return self.input.channels
        if self.input.image.color == "GRAY":
            return 1
        if self.input.image.channels == "convert":
            return 3
        # header.channels is 0 if the header does not state them.
        return header.channels or self._decoder.channels(element, header)

    def prepare(
        self,
        elements: Sequence[Element],
        out: Array,
        rows: Sequence[int] | None = None,
        numbers: Sequence[int] | None = None,
        requests: Sequence[NativeHandle] | None = None,
        headers: Sequence[Header | None] | None = None,
    ) -> list[KsrvError | None]:
        """Decode images into rows of a batch, on several threads if the images take long enough.

        An image whose request has ended is not decoded, so that the images of one request never delay the other
        requests of the batch, and later batches, by more than the request's deadline allows.

        Args:
            out: [rows, height, width, channels] of the input's datatype (BF16 as uint16), C-ordered.
            rows: The row of each image; the first rows unless given.
            numbers: The numbers of the images in error texts, if they are from several requests; their
                indices in `elements` unless given.
            requests: The request of each image, if requests may end meanwhile.
            headers: The header of each image from `check`, or None; read here unless given.

        Returns:
            For each image None, or its error; the row of an image with an error is all zero.
        """
        rows = range(len(elements)) if rows is None else rows
        pictures, errors = self._pictures(elements, out, rows, numbers, requests, headers)

        def run(start: int, stop: int) -> None:
            for picture in pictures[start:stop]:
                slot = out[picture.row]
                try:
                    self._decoder.fill(picture, slot)
                except Exception as error:  # noqa: BLE001  it is the image's failure, not the batch's
                    errors[picture.place] = self._failure(error, picture.position)
                    slot[...] = 0
                except BaseException:
                    slot[...] = 0
                    raise

        work = sum(picture.header.decode_ns for picture in pictures)
        self.pool.run(run, len(pictures), self.pool.chunks(len(pictures), work))
        return errors

    def placements(
        self, elements: Sequence[Element], checked: CheckedImages | None
    ) -> list[ImagePlacement]:
        """Return where the images of a request are in their rows.

        Args:
            checked: The result of `check`; None for a request of the fast path, whose headers were checked elsewhere.
        """
        geometry = self.input.geometry
        headers = checked.headers if checked else [self.input.header(file, 0) for file in elements]
        sizes = map(self.input.size, headers)
        if checked:
            _, height, width, _ = checked.shape
            return [geometry.placement(size, (height, width)) for size in sizes]
        return [geometry.placement(size, geometry.row(size)) for size in sizes]

    def fast_images(self) -> FastImages | None:
        """Return what the fast path needs to decode this input's JPEGs; None if it cannot decode them."""
        height, width, channels = self.input.height, self.input.width, self.input.channels
        if not (
            jpeg.decoder() == "libjpeg-turbo"
            and "jpeg" in self.input.image.formats
            and isinstance(height, int)
            and isinstance(width, int)
            and isinstance(channels, int)
            and min(height, width) >= 0
            and channels in (1, 3)
        ):
            return None
        return FastImages(
            self._decoder.plans.of_rows((height, width, channels)),
            self.pool,
            shape=(height, width, channels),
            strict=self.input.image.channels == "strict",
            upright=self.input.image.exif == "apply",
            resized=self.input.resizable,
            image_pixels=self.input.limits.image_pixels,
            request_pixels=self.input.limits.request_pixels,
            scans=self.input.limits.image_scans,
            scans_per_component=SCANS_PER_COMPONENT,
        )

    def _pictures(
        self,
        elements: Sequence[Element],
        out: Array,
        rows: Sequence[int],
        numbers: Sequence[int] | None,
        requests: Sequence[NativeHandle] | None,
        headers: Sequence[Header | None] | None,
    ) -> tuple[list[Picture], list[KsrvError | None]]:
        """Return the images whose headers are accepted, and the errors of the others."""
        errors: list[KsrvError | None] = [None] * len(elements)
        pictures: list[Picture] = []
        for index, element in enumerate(elements):
            number = index if numbers is None else numbers[index]
            request = None if requests is None else requests[index]
            try:
                known = None if headers is None else headers[index]
                header = self.input.header(element, number) if known is None else known
            except Exception as error:  # noqa: BLE001  it is the image's failure, not the batch's
                errors[index] = self._failure(error, number)
                out[rows[index]] = 0
                continue
            pictures.append(Picture(index, rows[index], number, element, header, request))
        return pictures, errors

    def _failure(self, error: Exception, position: int) -> KsrvError:
        """Return the error for an image's request alone; the other requests of its batch are answered."""
        if isinstance(error, KsrvError):
            return error
        if opencv.is_out_of_memory(error):
            return Overloaded(
                self.input.about(
                    position,
                    "cannot be decoded because the server has no memory for it; try again later",
                ),
                "memory",
            )
        log.error("%s", self.input.about(position, "cannot be prepared"), exc_info=error)
        return HandlerFailed(
            self.input.about(
                position, f"cannot be prepared: the server failed with {type(error).__name__}"
            )
        )


def image_preparers(
    inputs: Sequence[TensorSpec], limits: Limits, cores: int
) -> dict[str, ImagePreparer]:
    """Return how the images of a model's inputs are prepared, by input name."""
    return {
        entry.name: ImagePreparer(entry, limits, entry.name, decode_pool(cores))
        for entry in inputs
        if entry.image is not None
    }

"""The answers of `ksrv infer`: as lines of text, as JSON, as files, and drawn on the images that were sent."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from mimetypes import guess_extension
from pathlib import Path
from typing import Any

import click
import numpy as np

from ksrv._native.tensor.bytes_tensor import signature
from ksrv.client import InferResult
from ksrv.model.datatypes import NAME_BY_DTYPE

Array = Any

BOXES = "boxes"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def _datatype(value: Array) -> str:
    """Return the protocol's datatype of an output. Arrays of objects have the elements of BYTES."""
    return "BYTES" if value.dtype == object else NAME_BY_DTYPE.get(value.dtype, str(value.dtype))


def _text(element: bytes, content_type: str) -> str:
    """Return an element of BYTES as text for the terminal."""
    kind = content_type or (f"{found} image" if (found := signature(element)) else "")
    if kind:
        return f"{kind} of {len(element)} bytes"
    return element.decode("utf-8", "replace")


def show(answer: InferResult) -> None:
    """Print the outputs of an answer."""
    for name, value in answer.items():
        shape = ",".join(str(entry) for entry in value.shape)
        click.echo(f"{name}  {_datatype(value)}[{shape}]")
        if value.dtype == object:
            for row in value.reshape(value.shape[0] if value.ndim else 1, -1) if value.size else ():
                kind = answer.content_types.get(name, "")
                click.echo("  " + "  ".join(_text(element, kind) for element in row))
        else:
            text = np.array2string(value, precision=5, threshold=64, prefix="  ")
            click.echo(f"  {text}")


def as_document(answer: InferResult) -> dict[str, Any]:
    """Return an answer as a JSON object in the protocol's form."""
    document: dict[str, Any] = {"model_name": answer.model_name}
    if answer.model_version:
        document["model_version"] = answer.model_version
    document["outputs"] = [
        {
            "name": name,
            "datatype": _datatype(value),
            "shape": list(value.shape),
            "data": [
                _json(item, name in answer.content_types) for item in value.reshape(-1).tolist()
            ],
        }
        for name, value in answer.items()
    ]
    return document


def _json(value: Any, is_file: bool) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode() if is_file else value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not np.isfinite(value) else value


def save_outputs(answer: InferResult, images: Sequence[bytes], folder: Path) -> Iterator[Path]:
    """Write the outputs to files, and yield their paths.

    Args:
        images: The images that were sent, by row. Masks and boxes are drawn on them.
        folder: The folder for the files; created if it is missing.

    Raises:
        click.ClickException: A file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in answer.items():
            stem = _UNSAFE.sub("_", name) or "output"
            if value.dtype == object:
                kind = answer.content_types.get(name, "").partition(";")[0].strip()
                yield from _save_elements(value, folder, stem, guess_extension(kind))
                continue
            np.save(folder / f"{stem}.npy", value)
            yield folder / f"{stem}.npy"
            if value.ndim == 3 and value.dtype.kind in "iub" and value.size:  # masks of classes
                for row, mask in enumerate(value):
                    yield _write(folder / f"{stem}-{row}.png", _drawn_mask(mask, images, row))
        yield from _save_boxes(answer, images, folder)
    except OSError as error:
        raise click.ClickException(f"{folder}: {error}") from error


def _save_elements(value: Array, folder: Path, stem: str, suffix: str | None) -> Iterator[Path]:
    for row, element in enumerate(value.reshape(-1)):
        path = folder / f"{stem}-{row}{suffix or '.' + (signature(element) or 'txt')}"
        path.write_bytes(element)
        yield path


def _write(path: Path, picture: Array) -> Path:
    import cv2

    if not cv2.imwrite(str(path), picture):
        raise OSError(f"{path.name} cannot be written")
    return path


def _decoded(images: Sequence[bytes], row: int) -> Array | None:
    import cv2

    if row >= len(images):
        return None
    return cv2.imdecode(np.frombuffer(images[row], np.uint8), cv2.IMREAD_COLOR)


def colours(count: int) -> Array:
    """Return a colour (BGR) for each of `count` classes; the first is black."""
    import cv2

    steps = np.arange(count)
    # 67 has no factor in common with 180, OpenCV's number of hues, so neighbouring classes differ clearly.
    hues = np.stack([steps * 67 % 180, np.full(count, 200), np.full(count, 255)], -1)
    table = cv2.cvtColor(hues[None].astype(np.uint8), cv2.COLOR_HSV2BGR)[0]
    table[0] = 0
    return table


def _drawn_mask(mask: Array, images: Sequence[bytes], row: int) -> Array:
    """Return a mask of classes in colours, drawn on its image if the image was sent."""
    import cv2

    painted = colours(256)[mask.astype(np.int64) % 256]
    image = _decoded(images, row)
    if image is None:
        return painted
    image = cv2.resize(image, (painted.shape[1], painted.shape[0]), interpolation=cv2.INTER_AREA)
    return np.where(painted.any(-1, keepdims=True), image // 2 + painted // 2, image)


def _save_boxes(
    answer: Mapping[str, Array], images: Sequence[bytes], folder: Path
) -> Iterator[Path]:
    """Draw the boxes [N, M, 4] of left, top, right and bottom on the images that were sent."""
    import cv2

    boxes = answer.get(BOXES)
    if boxes is None or boxes.ndim != 3 or boxes.shape[-1] != 4:
        return
    counts = answer.get("count")
    for row, found in enumerate(boxes):
        image = _decoded(images, row)
        if image is None:
            return
        sides = np.array([image.shape[1], image.shape[0]] * 2)
        # Coordinates up to 1 are fractions of the image's width and height.
        scale = sides if found.size and np.nanmax(found) <= 1 else 1
        kept = found[: int(counts[row])] if counts is not None else found
        for place, box in enumerate(np.nan_to_num(kept * scale).round().clip(-(10**6), 10**6)):
            left, top, right, bottom = (int(side) for side in box)
            colour = tuple(int(part) for part in colours(256)[place % 255 + 1])
            cv2.rectangle(image, (left, top), (right, bottom), colour, 2)
        yield _write(folder / f"{BOXES}-{row}.png", image)

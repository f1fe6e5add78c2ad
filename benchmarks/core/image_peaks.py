"""Peak memory of one JPEG of 12 megapixels that becomes 224x224, in a fresh process for each kind.

    python benchmarks/core/image_peaks.py

Told are the memory that the process took for it beyond what it held after a picture of 640x427, and the CPU
time. Linux only: the peak is the kernel's (`VmHWM`).
"""

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.memory import buffer_pool
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "baseline, linear": ({}, {}),
    "baseline, area": ({}, {"resize": "area"}),
    "baseline, pillow": ({}, {"resize": "pillow"}),
    "baseline, letterbox": ({}, {"resize": "letterbox"}),
    "turned by EXIF (6), linear": ({"orientation": 6}, {}),
    "turned by EXIF (3), linear": ({"orientation": 3}, {}),
    "turned by EXIF (6), area": ({"orientation": 6}, {"resize": "area"}),
    "turned by EXIF (6), pillow": ({"orientation": 6}, {"resize": "pillow"}),
    "progressive, linear": ({"progressive": True}, {}),
}
"""How the file is made, and how the input takes it."""


def encoded(size: tuple[int, int], *, orientation: int = 1, **options: Any) -> bytes:
    from sklearn.datasets import load_sample_image

    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    picture = Image.fromarray(load_sample_image("china.jpg")).resize(size)
    picture.save(file, "JPEG", quality=90, exif=exif, **options)
    return file.getvalue()


def kibibytes(key: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(key))


def tell(kind: str, small: Path, large: Path) -> None:
    """Print one kind's line."""
    buffer_pool.tune_malloc()
    spec = TensorSpec("x", "FP32", (-1, 224, 224, 3), ImageSpec(exif="apply", **KINDS[kind][1]))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(1))
    out = np.ones((1, 224, 224, 3), np.float32)
    assert prepare.prepare([small.read_bytes()], out) == [None]
    file = large.read_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    held, began = kibibytes("VmRSS"), time.thread_time()
    assert prepare.prepare([file], out) == [None]
    spent = time.thread_time() - began
    print(f"{kind:<28} {(kibibytes('VmHWM') - held) / 1024:5.1f} MiB {spent * 1e3:6.0f} ms")


def main() -> None:
    if len(sys.argv) > 1:
        tell(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small.jpg"), Path(folder, "large.jpg")
        for kind, (options, _) in KINDS.items():
            small.write_bytes(encoded((640, 427), **options))
            large.write_bytes(encoded((4000, 3000), **options))
            subprocess.run([sys.executable, __file__, kind, small, large], check=True)


if __name__ == "__main__":
    main()

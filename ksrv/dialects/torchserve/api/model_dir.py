"""Files for users' unit tests of their handlers: `ts.torch_handler.unit_tests.test_utils.model_dir`."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib import request
from urllib.parse import urlsplit


def copy_files(src_dir: Path, dst_dir: Path, files: Mapping[str, str]) -> None:
    """Copy files of one folder into another.

    Args:
        files: The new name of each file by its original name.
    """
    for source, copy in files.items():
        shutil.copyfile(Path(src_dir) / source, Path(dst_dir) / copy)


def download_model(model_url: str, model_dir: Path) -> None:
    """Fetch a model into `.cache` of the current folder, once, and copy it to `model.pt` of a folder."""
    cached = Path(".cache", Path(urlsplit(model_url).path).name)
    if not cached.exists():
        cached.parent.mkdir(exist_ok=True)
        part = cached.with_name(f"{cached.name}.part")
        with request.urlopen(model_url) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
        part.replace(cached)
    shutil.copyfile(cached, Path(model_dir) / "model.pt")
